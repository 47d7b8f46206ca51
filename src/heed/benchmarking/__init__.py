"""Benchmarks: the hardware limits of a machine, and how fast heed trains and translates relative to them."""
