"""Record a module's calls in a user's own script, and write it as a task folder.

`launch`, `recorder` and their imports run inside the user's process: the standard library, torch
and the plain files of `cuagent.task` only.
"""
