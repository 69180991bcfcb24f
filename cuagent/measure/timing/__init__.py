"""Timing of one attempt beside its baselines."""
