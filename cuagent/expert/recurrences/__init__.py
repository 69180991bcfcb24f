"""Recurrences over time: loops over cells, and scans of linear recurrences."""
