"""Append the record of each problem to a JSONL file, and read the file.

A record is a plain dict; `docs/guides/bench.md` lists its fields. Each line is written and synced
immediately, so a kill loses at most the problem in progress. A partial last line, left by a kill,
is removed.

Each record has an authentication code of this user and machine (`record.origin`): the folder may
come with a cloned repository, and a forged record would be taken for a result.

Invariants: `finished` returns a record only if task, tool, device and settings are the same. No
link is followed below the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from cuagent.bench.problems import TASK_FOLDER, BenchError, refuse_links
from cuagent.bench.record_form import is_record
from cuagent.record.origin import MAC, has_valid_mac, with_mac

Record = dict[str, Any]
INTERNAL = "internal error"
"""Prefix of a record's reason if the failure is a fault of cuagent; the problem's log then has the
traceback."""
FORMAT = 2
"""Version of the record format. Increase it when the meaning of a field changes: older results are
then ignored, and their problems run again."""
RESULTS, LOCK, LOGS, RUNS, PAGE = "results.jsonl", ".lock", "logs", "runs", "report.html"
"""Names of the files and folders in an output folder."""
NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LARGEST_FILE = 512 << 20
"""Largest number of bytes of a file of results."""
SOURCES = ("*.py", "*.md", "*.cu", "*.cpp", "*.h")
"""Glob patterns of the files in cuagent's package that can change a result."""


@cache
def tool_version() -> str:
    """Return the version of cuagent with a digest of its sources."""
    import cuagent

    package = Path(cuagent.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for pattern in SOURCES for file in package.rglob(pattern)):
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return f"{cuagent.__version__}+{digest.hexdigest()[:12]}"


def key_of(task: str, device: str, settings: Mapping[str, Any], version: str = "") -> str:
    """Return a digest of everything that a result depends on: task, device, settings, tool version
    and record format.

    `task`: digest of the task. `device`: name of the device. `version`: that of cuagent; "" for
    `tool_version`. A stored result with the same key is still valid.
    """
    about = (FORMAT, task, version or tool_version(), device, sorted(settings.items()))
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]


@contextmanager
def opened_for_writing(out: Path, *, trust: bool = False) -> Iterator[ResultFile]:
    """Open the results of a folder for appending, and lock the folder against other benchmarks.
    Raises BenchError.

    `trust`: also use records that were not written by this user on this machine.
    """
    refuse_links(out, (RESULTS, LOCK, LOGS, RUNS, PAGE, TASK_FOLDER))
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(os.open(out / LOCK, os.O_WRONLY | os.O_CREAT | NO_LINK, 0o644), "w")
    except OSError as error:
        raise BenchError(f"{out}: cannot be written ({error.strerror or error})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(
                f"{out}: another benchmark writes there; name another --out"
            ) from error
        yield ResultFile(out / RESULTS, trust=trust)


class ResultFile:
    """The file of results in one output folder, open for appending."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        found = list(_records(path))
        self.records = [_plain(r) for r in found if trust or has_valid_mac(r)]
        """Records written by this user on this machine; with `trust` all records."""
        self.foreign = len(found) - len(self.records)
        """Number of records that were ignored, because their origin is not trusted."""
        _drop_partial_line(path)

    @property
    def versions(self) -> list[str]:
        """Versions of cuagent (`tool_version`) that wrote the records."""
        return sorted({str(record["cuagent"]) for record in self.records})

    def finished(self, name: str, *keys: str) -> Record | None:
        """Return the newest record of problem `name` with one of these keys (`key_of`); None if
        there is none.

        A record of an internal error also gives None: the cause may be gone by now, so the problem
        runs again.
        """
        of_problem = (r for r in reversed(self.records) if r["problem"] == name)
        last = next((r for r in of_problem if r["key"] in keys), None)
        return None if last is None or last["reason"].startswith(INTERNAL) else last

    def append(self, record: Record) -> None:
        """Append a record to the file in one write, and sync the file."""
        line = json.dumps(with_mac(record), allow_nan=False) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK
        descriptor = os.open(self.path, flags, 0o644)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.records.append(record)

    def set_aside(self) -> None:
        """Rename the file of results, so that every problem runs again."""
        if self.records or self.foreign:
            self.path.rename(self.path.with_suffix(f".{int(time.time())}.jsonl"))
            self.records, self.foreign = [], 0


def read_results(path: Path) -> list[Record]:
    """Return the records of a results file, or of the output folder that contains it; [] if there
    is none.

    The origin of records is not checked. Lines without a complete record are left out.
    """
    return [_plain(r) for r in _records(path / RESULTS if path.is_dir() else path)]


def outdated(path: Path) -> int:
    """Return the number of records in another version of the format, which `read_results` leaves
    out."""
    records = _objects(path / RESULTS if path.is_dir() else path)
    return sum(record.get("format", FORMAT) != FORMAT for record in records)


def _records(file: Path) -> Iterator[Record]:
    for record in _objects(file):
        if record.get("format") == FORMAT and is_record(record):
            yield record


def _objects(file: Path) -> Iterator[Record]:
    for line in _content(file).split(b"\n"):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def _content(file: Path) -> bytes:
    """Return the content of a regular file; b"" if there is none. Raises BenchError."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | NO_LINK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if found.st_size > LARGEST_FILE:
                raise BenchError(f"{file}: larger than {LARGEST_FILE >> 20} MiB")
            return opened.read() if stat.S_ISREG(found.st_mode) else b""
    except OSError:
        return b""


def _plain(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != MAC}


def latest(records: list[Record]) -> list[Record]:
    """Return the newest record of each problem, in the order in which the problems first occur."""
    return list({record["problem"]: record for record in records}.values())


def _drop_partial_line(path: Path) -> None:
    """Remove a last line without a newline, which a killed process left."""
    text = _content(path)
    if text and not text.endswith(b"\n"):
        descriptor = os.open(path, os.O_WRONLY | NO_LINK)
        try:
            os.ftruncate(descriptor, text.rfind(b"\n") + 1)
        finally:
            os.close(descriptor)
