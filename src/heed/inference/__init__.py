"""A model folder to text in, text out."""
