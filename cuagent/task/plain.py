"""Convert a Task to JSON data and back, for records and other processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from cuagent.task.step import Step
from cuagent.task.task import Device, Task, recorded_precision


def task_from_json(data: dict[str, Any]) -> Task:
    """Return the task that `task_to_json` wrote.

    Raises KeyError, TypeError or ValueError for other data.
    """
    for name, value in data.items():
        if not isinstance(value, str) and (value is not None or name not in ("inputs", "init")):
            raise TypeError(f"{name} of the task is not text")
    kinds: dict[str, Any] = {
        "path": Path(data["path"]),
        "device": Device(data["device"]),
        "precision": recorded_precision(data),
    }
    task = Task(**data | kinds)
    Step.of(task)  # raises ValueError if the text is not a step
    return task


def task_to_json(task: Task) -> dict[str, Any]:
    """Return the fields of a task as JSON data."""
    return dataclasses.asdict(task) | {"path": str(task.path)}
