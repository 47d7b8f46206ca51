"""A model and a sentence to numbers, to pictures."""
