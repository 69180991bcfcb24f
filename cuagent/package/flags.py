"""torch's flags, for `guard.py` in this folder. An export holds `cuagent/task/flags.py` here."""

from cuagent.task.flags import flags_kept, flags_set, flags_test, read_flags, set_flags

__all__ = ["flags_kept", "flags_set", "flags_test", "read_flags", "set_flags"]
