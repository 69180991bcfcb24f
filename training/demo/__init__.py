"""The demonstration: a small decoder learns to choose among its teacher's kernels."""
