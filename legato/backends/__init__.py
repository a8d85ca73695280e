"""How a loaded model is executed: PyTorch, the CPU kernels, or CUDA graphs."""
