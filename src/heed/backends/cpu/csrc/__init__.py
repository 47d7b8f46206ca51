"""Code in C, which `backends/cpu/build.py` compiles where it is used."""
