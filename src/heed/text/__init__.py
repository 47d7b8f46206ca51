"""Reads text files as sentence pairs and prepares token ids on disk; needs no torch."""
