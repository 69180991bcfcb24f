"""Capture the reference of a task as a flat operator graph."""
