"""CUDA graphs, static buffers and Triton kernels."""
