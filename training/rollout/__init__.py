"""Rollouts: play episodes through the agent's own loop and tools, and collect them."""
