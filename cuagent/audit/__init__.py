"""Judge recorded attempts again and compare the figures."""
