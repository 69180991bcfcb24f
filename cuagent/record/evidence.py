"""A verdict as a file that anyone can check: what was judged, by what, on which draws.

The file holds the task and the attempt as text, so that an audit (`audit.py`) needs nothing else.
A run keeps one for each verdict that somebody may rely on, under `evidence/attempt-N-EFFORT.json`
beside its log: those of accepted attempts, and all of record. A file of this user and machine holds
a mark (`origin.py`). Not proved by another one: that it was not written by hand; that is what the
audit is for. Invariant: like the log, a file of a run is there
whole or not at all, and secrets are masked in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.record.folder import RunFolder
from cuagent.record.inside import RecordError, write_file
from cuagent.record.origin import marked
from cuagent.record.plain import plain

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.judge import Judgement
    from cuagent.task import Task

FORMAT = "cuagent evidence 2"
JUDGING = ("verify", "worker", "sandbox", "build", "task", "kernels")
"""Rooms whose sources decide a verdict."""
RECORD = "record"
LARGEST = 64 << 20
"""Bytes of an evidence file that are read. Those of large tasks have 1 MB."""


class EvidenceError(Exception):
    """The file is no evidence. One line: what, where, what to do."""


def evidence(task: Task, attempt: Attempt, judgement: Judgement) -> dict[str, Any]:
    """The content of an evidence file, in plain JSON values."""
    from cuagent.build import versions
    from cuagent.worker.arms import task_to_json

    return {
        "format": FORMAT,
        "verifier": verifier_digest(),
        "task": task_to_json(task),
        "task_digest": task.digest,
        "attempt": dict(attempt.files),
        "attempt_digest": attempt.digest,
        "compilers": versions() if judgement.build.libraries else {},
        "build": built(judgement.build),
        "verdict": plain(judgement.verdict),
        "timing": plain(judgement.timing),
    }


def built(build: Build) -> list[dict[str, str]]:
    """Each library of a build: `key` names what went into it, `sha256` what came out."""
    return [
        {"source": library.source, "key": library.key, "sha256": _sha256(library.path)}
        for library in build.libraries
    ]


def read_evidence(path: Path) -> dict[str, Any]:
    """Raises EvidenceError."""
    give = "give a file of verify --evidence"
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(LARGEST + 1) or b""
        if len(content) > LARGEST:
            raise EvidenceError(f"{path}: larger than {LARGEST >> 20} MiB; {give}")
        data = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: no text; {give}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise EvidenceError(f"{path}: cannot be read ({why}); {give}") from error
    except RecursionError as error:
        raise EvidenceError(f"{path}: nested too deeply; {give}") from error
    except ValueError as error:  # not only JSONDecodeError: an integer may be too long
        raise EvidenceError(f"{path}: not JSON ({error}); {give}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise EvidenceError(f"{path}: not {FORMAT!r}; give a file of cuagent verify --evidence")
    return data


def keep_evidence(
    folder: RunFolder,
    task: Task,
    attempt: Attempt,
    judgement: Judgement,
    name: tuple[int, str],
    redact: Callable[[Any], Any],
) -> Path | None:
    """Write the evidence for attempt number and effort `name`; None where nobody relies on it.

    Raises RecordError.
    """
    n, effort = name
    if not (judgement.verdict.accepted or effort == RECORD):
        return None
    data = evidence(task, attempt, judgement)
    target = folder.evidence / f"attempt-{n}-{effort}.json"
    text = json.dumps(marked(redact(data)), allow_nan=False)
    try:
        write_file(folder.path, f"{target.parent.name}/{target.name}", text.encode("utf-8"))
    except OSError as error:
        raise RecordError(f"{target}: {error.strerror}; the run cannot go on") from error
    return target


@cache
def verifier_digest() -> str:
    """sha256 over the sources that decide a verdict."""
    h = hashlib.sha256()
    root = Path(__file__).parents[1]
    for room in JUDGING:
        for file in sorted((root / room).rglob("*.py")):
            h.update(f"{file.relative_to(root).as_posix()}\0".encode())
            h.update(file.read_bytes())
    return h.hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
