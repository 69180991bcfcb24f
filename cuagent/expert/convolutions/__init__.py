"""Convolutions on a GPU's tensor cores that a generated kernel may compute faster than cuDNN."""
