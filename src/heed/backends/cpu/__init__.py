"""CPU backend: kernels in C, compiled for this processor when they are first needed."""
