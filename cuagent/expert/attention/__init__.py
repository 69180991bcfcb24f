"""Attention: softmax of the products of queries and keys, times values, as one call."""
