"""Capture a task's reference as a graph of torch operators without submodules."""
