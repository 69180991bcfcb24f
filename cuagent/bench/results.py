"""Append the record of each problem to a JSONL file, and read it back.

A record is a plain dict; `docs/guides/bench.md` lists its fields. Each line is written at once and
synced, so a kill loses at most the problem in progress. A line that a kill cut off is dropped.

Invariant: `finished` returns a record only if task, tool, device and settings are the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from cuagent.bench.problems import BenchError

Record = dict[str, Any]
FORMAT = 1
"""Format of the records. Increase it when their meaning changes: older ones are then redone."""
RESULTS = "results.jsonl"
SOURCES = ("*.py", "*.md", "*.cu", "*.cpp", "*.h")
"""Files of the package that can change a result."""


@cache
def tool_version() -> str:
    """Return the version of cuagent with a digest of its sources."""
    import cuagent

    package = Path(cuagent.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for pattern in SOURCES for file in package.rglob(pattern)):
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return f"{cuagent.__version__}+{digest.hexdigest()[:12]}"


def key_of(task: str, device: str, settings: Mapping[str, Any]) -> str:
    """Return the key under which a problem's result is valid."""
    about = (FORMAT, task, tool_version(), device, sorted(settings.items()))
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]


@contextmanager
def opened_for_writing(out: Path) -> Iterator[ResultFile]:
    """Open the results of a folder for one benchmark at a time. Raises BenchError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("a")
    except OSError as error:
        raise BenchError(f"{out}: cannot be written ({error.strerror or error})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(
                f"{out}: another benchmark writes there; name another --out"
            ) from error
        yield ResultFile(out / RESULTS)


class ResultFile:
    """The results of one folder, open for appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = read_results(path)
        _drop_partial_line(path)

    def finished(self, name: str, key: str) -> Record | None:
        """Return the valid record of a problem; None if it has none."""
        found = (r for r in reversed(self.records) if (r["problem"], r["key"]) == (name, key))
        return next(found, None)

    def append(self, record: Record) -> None:
        """Write a record in one piece and sync it."""
        line = json.dumps(record, allow_nan=False) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.records.append(record)

    def set_aside(self) -> None:
        """Rename the file, so that every problem is done again."""
        if self.records:
            self.path.rename(self.path.with_suffix(f".{int(time.time())}.jsonl"))
            self.records = []


def read_results(path: Path) -> list[Record]:
    """Return the records of a results file or of a folder with one; [] if there is none.

    Lines that are no record of this format are left out.
    """
    file = path / RESULTS if path.is_dir() else path
    if not file.exists():
        return []
    records = []
    for line in file.read_bytes().split(b"\n"):
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and record.get("format") == FORMAT:
                records.append(record)
    return records


def latest(records: list[Record]) -> list[Record]:
    """Return the newest record of each problem, in the order of the first ones."""
    return list({record["problem"]: record for record in records}.values())


def _drop_partial_line(path: Path) -> None:
    """Truncate a last line without an end, which a kill left."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)
