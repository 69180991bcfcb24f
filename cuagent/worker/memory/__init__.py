"""Memory that the referee owns or limits."""
