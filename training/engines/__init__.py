"""Engines that sample token ids from a policy, and the export to the trainer verl."""
