"""Strings to scores. No torch."""
