"""What is wrong with parallel text, found before a model is trained on it."""
