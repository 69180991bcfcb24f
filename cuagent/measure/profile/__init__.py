"""Profile of one model: the time of each operator and kernel, and hardware counters."""
