"""Portable backend: inference and training with torch operators, on any machine."""
