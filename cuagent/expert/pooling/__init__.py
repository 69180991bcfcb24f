"""Kernels of pools and interpolation with the elementwise operations around them."""
