"""Matrix products on the tensor cores of a GPU, with the elementwise operations behind them."""
