"""Reserve GPU memory for a problem: a queue of processes in a folder.

Problems start in the order in which they asked, except that one for which memory is free passes
those that still wait for more. So a large problem does not keep small ones waiting. After
`MOST_PASSES` problems have passed it, no further one starts before it.

Invariants: the claims of all started problems fit into the memory, unless a problem is alone. A
claim ends with its process, however the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

POLL_S = 0.1
MOST_PASSES = 8
"""Number of problems that may start before one that asked earlier and waits for more memory."""
WIDTH = 200
"""Length of a claim file in bytes, padded with spaces."""


@dataclass(frozen=True)
class Claim:
    """Claim of one problem, as in its file."""

    ticket: int
    """Position in the order in which problems asked."""
    size: int
    """Bytes of GPU memory."""
    started: bool = False
    """True if the memory is reserved, False while the problem waits."""
    passes: int = 0
    """Number of problems that asked later and started earlier."""


def may_start(own: Claim, others: Sequence[Claim], usable: int) -> bool:
    """Return True if a problem that waits may start while the `others` run or wait.

    `usable`: bytes of memory that all claims together may take.
    """
    started = [other.size for other in others if other.started]
    if started and sum(started) + own.size > usable:
        return False
    return not any(_is_passed(other, own) and other.passes >= MOST_PASSES for other in others)


@contextmanager
def claimed(folder: Path, size: int, usable: int) -> Iterator[None]:
    """Wait until `size` bytes of `usable` are free, and reserve them inside this context.

    `folder`: folder with the claim files of all problems on this GPU.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{os.getpid()}.claim"
    with ExitStack() as stack:
        with _alone(folder):
            # Until it is locked, the file looks like that of a dead process, which others delete.
            alive = stack.enter_context(path.open("w"))
            fcntl.flock(alive, fcntl.LOCK_EX)
            ticket = 1 + max((other.ticket for other in _others(folder, path).values()), default=0)
            _write(path, Claim(ticket, size))
        try:
            while not _starts(folder, path, usable):
                time.sleep(POLL_S)
            yield
        finally:
            path.unlink(missing_ok=True)


def _starts(folder: Path, path: Path, usable: int) -> bool:
    """Start the problem with the claim file `path` if it may; return True if it started."""
    with _alone(folder):
        own, others = _read(path), _others(folder, path)
        if not may_start(own, list(others.values()), usable):
            return False
        for other_path, other in others.items():
            if _is_passed(other, own):
                _write(other_path, replace(other, passes=other.passes + 1))
        _write(path, replace(own, started=True))
        return True


def _is_passed(other: Claim, own: Claim) -> bool:
    return not other.started and other.ticket < own.ticket


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Context in which no other process reads or writes claims."""
    with (folder / "queue").open("a") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        yield


def _others(folder: Path, own: Path) -> dict[Path, Claim]:
    """Return the claims of other living processes by file; delete the files of dead ones."""
    found = {}
    for path in folder.glob("*.claim"):
        if path != own and _is_alive(path):
            with suppress(FileNotFoundError, ValueError):  # ended meanwhile; not written yet
                found[path] = _read(path)
    return found


def _is_alive(path: Path) -> bool:
    """Return True if the process of a claim file lives; otherwise delete the file."""
    try:
        with path.open() as claim:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _read(path: Path) -> Claim:
    return Claim(**json.loads(path.read_text()))


def _write(path: Path, claim: Claim) -> None:
    # In place, because the owner's lock is on this file; in one write of constant length, because
    # a kill must not leave half a claim in the file of another process.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, json.dumps(asdict(claim)).ljust(WIDTH).encode())
    finally:
        os.close(descriptor)
