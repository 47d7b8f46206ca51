"""Portable inference with torch operators: the path that runs anywhere."""
