"""Text to sentence pairs to ids on disk. No torch."""
