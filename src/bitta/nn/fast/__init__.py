"""Fast path: choice of the execution path, CUDA graphs, Triton kernels."""
