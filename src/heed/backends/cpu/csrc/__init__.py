"""The engine for CPUs: C sources, with `heed.h` as their public header, and `build.py`, which builds them."""
