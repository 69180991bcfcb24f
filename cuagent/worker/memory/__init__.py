"""Memory that the referee owns and lends to workers, or limits."""
