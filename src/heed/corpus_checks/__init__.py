"""What is wrong with a training text, found before a model is trained on it."""
