"""Triton kernels of attention; each equals a function of core.py, which runs wherever the kernel does not."""
