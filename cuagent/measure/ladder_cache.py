"""Cache of measured ladders, in the user's cache folder.

An entry is valid for one task, device, version of torch and of cuagent, effort and set of rungs. A
CPU result from a busy machine is valid for some minutes only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

from cuagent.measure.roofline.ceilings import QUIET_SHARE, REMEASURE_AFTER_S, describe
from cuagent.measure.rungs import Ladder
from cuagent.task import Device, Task
from cuagent.task.memory import shortage
from cuagent.timing import Effort

FORMAT = 7
"""Version of the cache entries. Increase it when the measurement changes, so that older entries are
ignored."""
LARGEST_FILE = 4 << 20
"""Largest entry in bytes that is read."""


def cached(
    task: Task, effort: Effort, sets: Iterable[tuple[str, ...]], cache: Path | None
) -> Ladder | None:
    """Return a cached ladder of at least this effort for one of the sets of rungs, or None."""
    efforts = [Effort.RECORD] if effort is Effort.RECORD else [Effort.RECORD, Effort.QUICK]
    files = (
        _file(task, cached_effort, names, cache) for names in sets for cached_effort in efforts
    )
    found = filter(None, map(_read, files))
    return next((known for known in found if _is_usable(known, task.device)), None)


def _is_usable(known: Ladder, device: Device) -> bool:
    """Return True if a cached ladder may be used in place of a new measurement.

    It may not if a rung failed for lack of memory. An undecided ladder, or one from a busy machine,
    may be used only until its age is `REMEASURE_AFTER_S`.
    """
    if any(shortage(RuntimeError(rung.failed)) for rung in known.rungs if rung.failed):
        return False
    noisy = device is Device.CPU and known.busy >= QUIET_SHARE
    return not (noisy or known.undecided) or time.time() - known.when < REMEASURE_AFTER_S


def _file(task: Task, effort: Effort, names: tuple[str, ...], cache: Path | None) -> Path:
    import torch

    from cuagent import __version__

    about = (FORMAT, task.digest, describe(task.device), torch.__version__, __version__)
    key = hashlib.sha256(repr((about, effort.value, names)).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME")
    home = (Path(base) if base else Path.home() / ".cache") / "cuagent"
    return (cache or home) / f"ladder-{key}.json"


def _read(file: Path) -> Ladder | None:
    """Return the ladder stored in a file; None if it is unreadable or has implausible values."""
    try:
        with file.open("rb") as opened:
            found = Ladder.from_json(json.loads(opened.read(LARGEST_FILE)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    ratios = [rung.over_eager for rung in found.rungs if rung.over_eager is not None]
    numbers = [value for ratio in ratios for value in (ratio.value, ratio.low, ratio.high)]
    # A rung that was not timed has no seconds: NaN.
    numbers += [rung.seconds for rung in found.rungs if rung.seconds == rung.seconds]
    sound = all(type(n) in (float, int) and 0 < n < math.inf for n in numbers)
    named = all(isinstance(rung.name, str) for rung in found.rungs)
    plain = isinstance(found.when, float | int) and isinstance(found.busy, float | int)
    return found if sound and named and plain else None


def write(
    task: Task, effort: Effort, names: tuple[str, ...], cache: Path | None, made: Ladder
) -> None:
    """Store a ladder in the cache. Errors are ignored, because the next call can measure again."""
    file = _file(task, effort, names, cache)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(made.to_json()))
        partial.replace(file)
    except OSError:
        pass
