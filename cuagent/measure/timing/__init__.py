"""Timing of an attempt against its baselines."""
