"""Loops over time, written in Python: elementwise updates of a state, all steps in one kernel."""
