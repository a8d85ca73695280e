"""The CPU backend: modules that run the C kernels on the weights of the reference modules."""
