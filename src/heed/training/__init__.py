"""Training: prepared text and settings to a trained model folder; `heed.train` is its entry point."""
