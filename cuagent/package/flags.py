"""Functions for torch's global flags, for `guard.py` in this folder.

An export replaces this file by a copy of `cuagent/task/flags.py`.
"""

from cuagent.task.flags import flags_kept, flags_set, flags_test, read_flags, set_flags

__all__ = ["flags_kept", "flags_set", "flags_test", "read_flags", "set_flags"]
