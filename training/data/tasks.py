"""Load tasks, and split tasks and their episodes into a training part and a held-out part.

Every stage uses the same split: it depends on the task's source text, its class and the share
alone. So a run of `cuagent optimize` on a held-out task is held out for each device, precision and
`--inputs`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

from cuagent.synth.dataset import checksum, difficulties, set_and_split, task_files
from cuagent.task import Device, Task, load_task
from cuagent.training.data.segments import Episode, RecordError


class Part(StrEnum):
    """A part of a task set: training tasks, held-out tasks, or all."""

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


def source_digest(source: str, entry: str) -> str:
    """Return the digest of a task's source text and class.

    Unlike `Task.digest` it does not depend on the device, the precision or the torch settings.
    """
    return hashlib.sha256(json.dumps([source, entry]).encode()).hexdigest()


def is_heldout(digest: str, share: float, salt: str = "cuagent") -> bool:
    """Return True if the task with the source digest `digest` is held out of training.

    The answer is the same on every machine, in every stage. `share`: share of tasks to hold out.
    """
    h = hashlib.sha256(f"{salt}:{digest}".encode()).digest()
    return int.from_bytes(h[:8], "big") < share * 2**64


def split_tasks(tasks: Sequence[Task], share: float) -> tuple[list[Task], list[Task]]:
    """Split tasks into (train, held out); `share` is the share held out.

    `split` splits episodes by the same rule. Raises RecordError if no training task is left.
    """
    parts: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        parts[is_heldout(source_digest(task.source, task.entry), share)].append(task)
    if tasks and not parts[0]:
        raise RecordError("every task is held out; add tasks, or set heldout lower")
    return parts


def split(episodes: Iterable[Episode], share: float) -> tuple[list[Episode], list[Episode]]:
    """Split episodes into (train, held out) by task: no task has episodes in both.

    `share`: share of tasks to hold out. Raises RecordError if no training episode is left.
    """
    train: list[Episode] = []
    heldout: list[Episode] = []
    for episode in episodes:
        key = episode.source or episode.task
        (heldout if is_heldout(key, share) else train).append(episode)
    if heldout and not train:
        raise RecordError("the task of every episode is held out; set heldout lower")

    return train, heldout
