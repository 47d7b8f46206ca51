"""Backends: faster implementations of the model's arithmetic, one folder each, behind one protocol."""
