"""Load tasks, and split tasks and their episodes into a training part and a held-out part.

Every stage uses the same split: it depends on the task's digest and the share alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

from cuagent.synth.dataset import checksum, difficulties, set_and_split, task_files
from cuagent.task import Device, Task, load_task
from cuagent.training.data.segments import Episode, RecordError


class Part(StrEnum):
    """A part of a task set: training tasks, held-out tasks, or all. The split depends on task
    hashes alone."""

    TRAIN = "train"
    HELDOUT = "heldout"
    ALL = "all"


def load_tasks(folder: Path, device: str) -> list[Task]:
    """Load every `.py` file of a folder, or every row of a parquet file, as a task.

    A parquet file is one of `cuagent synth`: `FILE.parquet` means its split `train`,
    `FILE.parquet:test_shape` its split `test_shape`. The tasks' code is written to a folder next to
    the file. Raises TaskError, RecordError, SynthError.
    """
    chosen = set_and_split(folder)
    if not (folder if chosen is None else chosen[0]).exists():
        raise RecordError(f"{folder}: no such folder")
    if chosen is not None:
        files = task_files(*chosen)
    else:
        files = [folder] if folder.is_file() else sorted(folder.glob("*.py"))
    if not files:
        raise RecordError(f"{folder}: no tasks (*.py, or rows of the split)")
    kind = Device(device.partition(":")[0])
    return [load_task(str(file), device=kind) for file in files]


def task_difficulties(path: Path, tasks: Sequence[Task]) -> dict[str, float]:
    """Return the measured difficulty of tasks by digest; tasks without a measurement are left
    out."""
    chosen = set_and_split(path)
    if chosen is None:
        return {}
    graded = difficulties(chosen[0])
    found = {task.digest: graded.get(checksum(task.source)) for task in tasks}
    return {digest: value for digest, value in found.items() if value is not None}


def part_of(tasks: Sequence[Task], share: float, part: Part) -> list[Task]:
    """Return the tasks that belong to `part`. `share`: share of tasks to hold out. Raises
    RecordError if no task belongs to it."""
    if part is Part.ALL:
        return list(tasks)
    train, heldout = split_tasks(tasks, share)
    if part is Part.HELDOUT and not heldout:
        raise RecordError(
            f"none of {len(tasks)} tasks is held out (heldout={share}); add tasks, or use "
            "--part all for a folder of tasks that no stage has seen"
        )
    return train if part is Part.TRAIN else heldout


def is_heldout(task: str, share: float, salt: str = "cuagent") -> bool:
    """Return True if the task with digest `task` is held out of training.

    The answer is the same on every machine, in every stage. `share`: share of tasks to hold out.
    """
    h = hashlib.sha256(f"{salt}:{task}".encode()).digest()
    return int.from_bytes(h[:8], "big") < share * 2**64


def split_tasks(tasks: Sequence[Task], share: float) -> tuple[list[Task], list[Task]]:
    """Split tasks into (train, held out); `share` is the share held out.

    `split` splits episodes by the same rule. Raises RecordError if no training task is left.
    """
    train = [task for task in tasks if not is_heldout(task.digest, share)]
    if tasks and not train:
        raise RecordError("every task is held out; add tasks, or set heldout lower")
    return train, [task for task in tasks if is_heldout(task.digest, share)]


def split(episodes: Iterable[Episode], share: float) -> tuple[list[Episode], list[Episode]]:
    """Split episodes into (train, held out) by task: no task has episodes in both.

    `share`: share of tasks to hold out. Raises RecordError if no training episode is left.
    """
    train: list[Episode] = []
    heldout: list[Episode] = []
    for episode in episodes:
        (heldout if is_heldout(episode.task, share) else train).append(episode)
    if heldout and not train:
        raise RecordError("the task of every episode is held out; set heldout lower")

    return train, heldout
