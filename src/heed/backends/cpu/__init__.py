"""CPU backend: the engine in C, called through ctypes."""
