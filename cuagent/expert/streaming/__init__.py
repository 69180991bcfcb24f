"""Kernels for elementwise operations and row reductions: fusion, loop nests, C++ and CUDA."""
