"""The task: the module to make faster.

`Task` describes it, `load_task` reads it from a file, `open_reference` imports and builds it.
"""

from cuagent.task.load import load_task
from cuagent.task.reference import Reference, Values, check_runs, open_reference, training_note
from cuagent.task.settings import TorchSettings, read_settings
from cuagent.task.task import Device, Precision, Task, TaskError
from cuagent.task.tree import Spec, TreeError, flatten, unflatten

__all__ = [
    "Device",
    "Precision",
    "Reference",
    "Spec",
    "Task",
    "TaskError",
    "TorchSettings",
    "TreeError",
    "Values",
    "check_runs",
    "flatten",
    "load_task",
    "open_reference",
    "read_settings",
    "training_note",
    "unflatten",
]
