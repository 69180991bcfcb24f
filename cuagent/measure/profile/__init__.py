"""Profile of one model: time by kernel, hardware counters."""
