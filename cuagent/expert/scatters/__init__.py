"""Kernels of scatters: rows are summed, or reduced to extremes, by the destinations in an index
tensor.
"""
