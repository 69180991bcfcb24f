"""The next candidate, from the outcomes of the earlier ones."""
