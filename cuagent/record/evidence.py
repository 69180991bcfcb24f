"""Write and read evidence files, from which `cuagent audit` repeats a verdict.

An evidence file has the task and the attempt as text, the draws, the versions and the verdict, so
that an audit (`audit/audit.py`) needs no other file. A run writes `evidence/attempt-N-EFFORT.json`
for each accepted attempt and for each verdict of record effort. A file that this user wrote on this
machine has an authentication code (`origin.py`). Any other file may be forged; only an audit can
confirm it.

Invariant: a run's evidence file is complete or absent, and its secrets are masked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.record.contained_files import RecordError, write_file
from cuagent.record.folder import RunFolder
from cuagent.record.origin import with_mac
from cuagent.record.plain import plain

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.judgement import Judgement
    from cuagent.task import Task

FORMAT = "cuagent evidence 2"
JUDGING = ("verify", "worker", "sandbox", "build", "task", "kernels")
"""Packages of cuagent whose sources can change a verdict."""
RECORD = "record"
"""Name of the effort at which every verdict, also a rejection, gets an evidence file."""
MAX_EVIDENCE_BYTES = 64 << 20
"""Size in bytes of the largest evidence file that is read. Files of large tasks have about 1 MB."""


class EvidenceError(Exception):
    """Error: a file cannot be used as evidence. The message is one line: file, problem, remedy."""


def evidence(task: Task, attempt: Attempt, judgement: Judgement) -> dict[str, Any]:
    """Return the content of an evidence file as JSON values."""
    from cuagent.build import versions
    from cuagent.task.plain import task_to_json

    return {
        "format": FORMAT,
        "verifier": verifier_digest(),
        "task": task_to_json(task),
        "task_digest": task.digest,
        "attempt": dict(attempt.files),
        "attempt_digest": attempt.digest,
        "compilers": versions() if judgement.build.libraries else {},
        "build": library_hashes(judgement.build),
        "verdict": plain(judgement.verdict),
        "timing": plain(judgement.timing),
    }


def library_hashes(build: Build) -> list[dict[str, str]]:
    """Return the source, cache key and sha256 of each library of a build.

    `key` is the hash of the compiler's inputs, `sha256` that of the library file ("" if absent).
    """
    return [
        {"source": library.source, "key": library.key, "sha256": _sha256(library.path)}
        for library in build.libraries
    ]


def read_evidence(path: Path) -> dict[str, Any]:
    """Return the content of the evidence file `path` as JSON values. Raises EvidenceError."""
    advice = "give a file of verify --evidence"
    try:
        # Without O_NONBLOCK, opening a pipe blocks until a writer opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_EVIDENCE_BYTES + 1) or b""
        if len(content) > MAX_EVIDENCE_BYTES:
            raise EvidenceError(f"{path}: larger than {MAX_EVIDENCE_BYTES >> 20} MiB; {advice}")
        data = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: not UTF-8 text; {advice}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise EvidenceError(f"{path}: cannot be read ({why}); {advice}") from error
    except RecursionError as error:
        raise EvidenceError(f"{path}: nested too deeply; {advice}") from error
    except ValueError as error:  # JSONDecodeError, or an integer with too many digits
        raise EvidenceError(f"{path}: not JSON ({error}); {advice}") from error
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
    """Write the evidence file of a judgement and return its path.

    `name` is (number of the attempt, effort); `redact` masks secrets. A rejected attempt below
    record effort gets no file, and None is returned. Raises RecordError.
    """
    n, effort = name
    if not (judgement.verdict.accepted or effort == RECORD):
        return None
    data = evidence(task, attempt, judgement)
    target = folder.evidence / f"attempt-{n}-{effort}.json"
    text = json.dumps(with_mac(redact(data)), allow_nan=False)
    try:
        write_file(folder.path, f"{target.parent.name}/{target.name}", text.encode("utf-8"))
    except OSError as error:
        raise RecordError(
            f"{target}: {error.strerror}; free space or correct permissions, then resume the run"
        ) from error
    return target


@cache
def verifier_digest() -> str:
    """Return a sha256 over all sources that can change a verdict (the packages in `JUDGING`)."""
    h = hashlib.sha256()
    root = Path(__file__).parents[1]
    for package in JUDGING:
        for file in sorted((root / package).rglob("*.py")):
            h.update(f"{file.relative_to(root).as_posix()}\0".encode())
            h.update(file.read_bytes())
    return h.hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
