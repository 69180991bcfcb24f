"""Kernels of depthwise convolutions with the elementwise operations around them."""
