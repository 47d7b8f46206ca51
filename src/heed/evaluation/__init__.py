"""Scores translations, language models and classifiers, with signatures and bootstrap intervals; needs no torch."""
