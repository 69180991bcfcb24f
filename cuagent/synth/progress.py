"""Publish what a candidate's process does with a shared GPU, so that its parent can end it.

The process overwrites a small file; the parent reads it at any time. So the state of a process that
hangs, or that an interrupt ended, is known too.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

FILE = "progress"


class Doing(StrEnum):
    """Use of the GPU at one moment by a candidate's process."""

    WORKING = "working"
    """The process uses no lock."""
    AWAITS_MEMORY = "awaits memory"
    AWAITS_SHARING = "awaits sharing"
    AWAITS_TIMING = "awaits timing"
    SHARING = "sharing"
    """The process has the shared lock; no other one can time."""
    TIMING = "timing"
    """The process has the exclusive lock."""


WAITS = (Doing.AWAITS_MEMORY, Doing.AWAITS_SHARING, Doing.AWAITS_TIMING)
HOLDS = (Doing.SHARING, Doing.TIMING)


@dataclass(frozen=True)
class Seen:
    """State of a candidate's process as its parent reads it."""

    doing: Doing = Doing.WORKING
    since: float = 0.0
    """Begin of the current interval on the monotonic clock. For `Doing.SHARING` it is the last
    moment at which another process could have got the GPU for a timing."""
    stage: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each `Doing` in earlier intervals."""
    memory: int = 0
    """Bytes of GPU memory that are reserved now."""
    memory_s: float = 0.0
    """Seconds during which memory was reserved, in earlier reservations."""
    memory_since: float = 0.0
    longest_s: float = 0.0
    """Longest interval in seconds in which no other process could get the GPU for a timing."""
    longest_stage: str = ""
    """Stage in which the longest interval ended."""

    def at(self, now: float) -> Seen:
        """Return the state with the current intervals counted as ended at the time `now`."""
        seconds = dict(self.seconds)
        length = max(0.0, now - self.since)
        seconds[self.doing] = seconds.get(self.doing, 0.0) + length
        longest, stage = self.longest_s, self.longest_stage
        if self.doing in HOLDS and length > longest:
            longest, stage = length, self.stage
        memory_s = self.memory_s + (max(0.0, now - self.memory_since) if self.memory else 0.0)
        return Seen(
            self.doing, now, self.stage, seconds, self.memory, memory_s, now, longest, stage
        )

    @property
    def waited_s(self) -> float:
        return sum(self.seconds.get(kind, 0.0) for kind in WAITS)

    @property
    def held_s(self) -> float:
        """Seconds during which the process had the GPU's shared or exclusive lock."""
        return sum(self.seconds.get(kind, 0.0) for kind in HOLDS)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of a record: seconds of each lock, of reserved memory, and of the
        longest interval."""
        found = {f"{kind.value}_s": self.seconds.get(kind, 0.0) for kind in (*HOLDS, *WAITS)}
        found |= {"memory_s": self.memory_s, "longest_s": self.longest_s}
        rounded: dict[str, Any] = {name: round(value, 3) for name, value in found.items()}
        return rounded | {"longest_stage": self.longest_stage}


class Progress:
    """Writer of the state of this process; without a folder nothing is written to a file."""

    def __init__(self, folder: Path | None = None) -> None:
        """Create the file in `folder`."""
        self._state = Seen(since=time.monotonic())
        self._file: BinaryIO | None = None
        if folder is not None:
            self._file = (folder / FILE).open("wb", buffering=0)
        self._write()

    @property
    def seen(self) -> Seen:
        """State with the current intervals counted up to now."""
        return self._state.at(time.monotonic())

    @property
    def doing(self) -> Doing:
        return self._state.doing

    def begin(self, doing: Doing) -> None:
        """End the current interval and begin one of kind `doing`, which may be the same kind."""
        self._change(doing=doing)

    def enter(self, stage: str) -> None:
        """Set the name of the current stage."""
        before = self._state
        self._state = Seen(**(vars(before) | {"stage": stage}))
        self._write()

    def reserve(self, memory: int) -> None:
        """Set the bytes of GPU memory that are reserved from now on."""
        self._change(memory=memory)

    def _change(self, **changed: Any) -> None:
        self._state = Seen(**(vars(self.seen) | changed))
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            # One write, so that a reader does not see half of it; shorter texts leave an old end.
            os.pwrite(self._file.fileno(), json.dumps(vars(self._state)).encode() + b"\0", 0)


def read_progress(folder: Path) -> Seen | None:
    """Return the state that the process of `folder` published last; None if there is none, or it is
    being written."""
    try:
        data = json.loads((folder / FILE).read_bytes().partition(b"\0")[0])
        return Seen(**(data | {"doing": Doing(data["doing"])}))
    except (OSError, ValueError, TypeError, KeyError):
        return None
