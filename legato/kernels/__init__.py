"""C kernels of the `cpu` backend, compiled for the CPU of this machine at first use, and their ctypes bindings."""
