"""Experiments on what is said about attention and about what came before it."""
