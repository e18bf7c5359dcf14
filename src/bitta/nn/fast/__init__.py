"""Fast path: execution choices, CUDA graphs, Triton kernels."""
