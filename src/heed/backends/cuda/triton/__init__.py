"""Triton kernels of the CUDA backend; upper-case parameters are compile-time constants."""
