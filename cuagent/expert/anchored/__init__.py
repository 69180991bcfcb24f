"""Kernels of one anchor operation (a scan, a pool, a resample) with the elementwise operations
around it.
"""
