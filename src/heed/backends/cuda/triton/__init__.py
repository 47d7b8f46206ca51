"""What runs on the GPU itself, in Triton's language: its capitals are constants, its functions take many things."""
