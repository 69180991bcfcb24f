"""Inputs and weights: the kinds, their generators, and the seeds that decide them."""
