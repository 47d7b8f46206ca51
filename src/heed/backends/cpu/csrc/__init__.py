"""Code in C, which is compiled where it is used; `kernels.compiled` does that."""
