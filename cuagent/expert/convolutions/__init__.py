"""Three-dimensional and transposed convolutions on the tensor cores of a GPU."""
