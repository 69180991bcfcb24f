"""Timing of one attempt against its baselines."""
