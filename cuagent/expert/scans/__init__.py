"""Kernels of scans (cumulative sums and products) with the elementwise operations around them."""
