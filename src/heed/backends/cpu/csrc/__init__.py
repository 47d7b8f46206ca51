"""C sources of the CPU kernels, compiled on the user's machine by `backends/cpu/build.py`."""
