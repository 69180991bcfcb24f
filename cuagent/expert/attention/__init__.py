"""Attention, softmax(scale * q k^T + mask) v, as one call of torch or as one generated Triton
kernel."""
