"""CUDA backend: whole searches and training steps in CUDA graphs, static buffers and Triton kernels."""
