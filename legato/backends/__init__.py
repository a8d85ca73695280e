"""Backends, which execute a loaded model: PyTorch, the CPU kernels, or CUDA graphs."""
