"""Record the calls of a module in a user's own script, and write the module as a task folder.

`launch`, `recorder` and the modules that they import run inside the user's process. They use only
the standard library, torch and the plain files of `cuagent.task`.
"""
