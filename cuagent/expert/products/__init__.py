"""Matrix products that generated kernels compute on a GPU's tensor cores, with the elementwise
operations that follow them."""
