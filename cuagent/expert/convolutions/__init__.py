"""Convolutions that a generated kernel on a GPU's tensor cores may compute faster than cuDNN."""
