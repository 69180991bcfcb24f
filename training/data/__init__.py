"""Training data: tasks and their split, episodes, filters, tensors, and export formats."""
