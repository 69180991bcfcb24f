"""Kernels of sums and extremes of rows that an index tensor sends to each destination."""
