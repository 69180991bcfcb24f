"""Engines that sample token ids, and the export to verl."""
