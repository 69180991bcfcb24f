"""Search of the expert: choose the next candidate from the outcomes of the earlier ones."""
