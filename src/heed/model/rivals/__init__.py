"""What came before the Transformer: recurrent and convolutional layers in the place of self-attention."""
