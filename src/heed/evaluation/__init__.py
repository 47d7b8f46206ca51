"""Strings to scores with signature and interval. No torch."""
