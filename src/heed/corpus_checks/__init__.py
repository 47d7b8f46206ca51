"""Checks training data for errors before a model is trained on it."""
