"""Episodes through the agent's own loop and tools, and their collection."""
