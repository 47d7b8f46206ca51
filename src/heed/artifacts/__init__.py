"""A model to files and back: folders, cards, checkpoints, quantised and averaged weights."""
