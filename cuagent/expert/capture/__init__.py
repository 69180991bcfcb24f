"""From a task to a flat operator graph of its reference."""
