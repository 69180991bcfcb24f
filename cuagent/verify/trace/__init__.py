"""Facts about the reference that are read from the operators in one run of its forward."""
