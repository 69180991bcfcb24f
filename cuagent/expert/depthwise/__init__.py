"""Depthwise convolutions, with the elementwise operations around them."""
