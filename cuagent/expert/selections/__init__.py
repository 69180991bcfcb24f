"""Kernels of selections: the largest or smallest elements of each row, in order (CPU)."""
