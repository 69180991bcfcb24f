"""Kernels that reduce rows by a sum or an extreme; an index tensor gives each row's destination."""
