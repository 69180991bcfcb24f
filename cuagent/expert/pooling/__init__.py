"""Kernels of pools and interpolations with the elementwise operations around them."""
