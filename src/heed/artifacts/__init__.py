"""Models on disk: model folders, model cards, checkpoints, quantised and averaged weights."""
