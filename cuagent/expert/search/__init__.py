"""The expert's search: choose the next candidate from the outcomes of the earlier ones."""
