"""Loops over time that are written in Python: one kernel computes all steps of elementwise
updates.
"""
