"""Einsums of small matrices in a large batch, each computed by one Triton kernel."""
