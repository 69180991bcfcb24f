"""Measure how one process uses the lock of a device, by stage of its work.

A timing needs the device alone, so it waits until all other processes have released the shared
lock, and the device idles meanwhile. The figures name the stages that made others wait, and the
stages that waited.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

LONGEST = "longest"
"""Part of the names of figures that are maxima; all others are sums."""


@dataclass
class Uses:
    """Uses of the lock in one stage."""

    shared: int = 0
    """Number of shared uses."""
    shared_s: float = 0.0
    """Seconds for which the lock was shared."""
    longest_s: float = 0.0
    """Longest time in seconds for which the lock was shared without an offer to give way."""
    kept_s: float = 0.0
    """Seconds for which another process waited for the exclusive lock while we shared it."""
    kept_longest_s: float = 0.0
    """Longest such wait in seconds."""
    exclusive: int = 0
    """Number of exclusive uses."""
    exclusive_s: float = 0.0
    """Seconds for which the lock was held exclusively."""
    queue_s: float = 0.0
    """Seconds for which we waited behind other processes that asked for the exclusive lock."""
    drain_s: float = 0.0
    """Seconds for which we then waited until the processes that shared the lock released it."""
    drain_longest_s: float = 0.0
    """Longest such wait in seconds."""

    def add(self, other: Mapping[str, Any]) -> None:
        """Add figures, by name: sums are added, and of two maxima the larger is kept."""
        for field in fields(self):
            known, new = getattr(self, field.name), other.get(field.name, 0)
            setattr(self, field.name, max(known, new) if LONGEST in field.name else known + new)


class LockUses:
    """Uses of a lock by stage; several threads may share one object.

    Pickling it for another process gives an empty one.
    """

    def __init__(self, outside: str = "other") -> None:
        """`outside`: name for uses outside of any stage."""
        self.outside = outside
        self.shared_s = self.exclusive_s = 0.0
        """Seconds for which this process held the lock, summed over its threads, without those of
        other processes."""
        self._stages: dict[str, Uses] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[LockUses], tuple[str]]:
        return LockUses, (self.outside,)

    def add(self, stage: str | None, **figures: float) -> None:
        """Add figures of this process (fields of `Uses`) to `stage`; None: outside of any stage."""
        with self._lock:
            self.shared_s += figures.get("shared_s", 0.0)
            self.exclusive_s += figures.get("exclusive_s", 0.0)
            self._of(stage or self.outside).add(figures)

    def add_child(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the uses of a child process, as given by its `to_json`."""
        with self._lock:
            for stage, figures in found.items():
                self._of(stage).add(figures)

    def taken(self) -> dict[str, dict[str, float]]:
        """Return the figures as `to_json` does, and begin again from zero."""
        found = self.to_json()
        with self._lock:
            self._stages.clear()
        return found

    def _of(self, stage: str) -> Uses:
        return self._stages.setdefault(str(stage), Uses())

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return the figures by stage, without those that are zero."""
        with self._lock:
            return {
                stage: {name: round(value, 3) for name, value in asdict(uses).items() if value}
                for stage, uses in self._stages.items()
            }
