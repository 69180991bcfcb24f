"""Records of training: tasks and their split, episodes, filters, tensors, formats."""
