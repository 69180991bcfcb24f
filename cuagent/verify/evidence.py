"""A verdict as a file that anyone can check: what was judged, by what, on which draws.

The file holds the task and the attempt as text, so that `audit` needs nothing else: it builds and
verifies them again on the recorded seeds. Not re-run: the timing, whose raw samples are kept as
they were. Not proved: that the file was not written by hand; that is what the audit is for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.build import build as build_sources
from cuagent.task import Task
from cuagent.verify.verdict import WHILE_TIMED, Reason, Verdict
from cuagent.worker.arms import task_from_json, task_to_json

if TYPE_CHECKING:
    from cuagent.verify.referee import Isolation

FORMAT = "cuagent evidence 1"
JUDGING = ("verify", "worker", "sandbox", "build", "task", "kernels")
"""Rooms whose sources decide a verdict."""


class EvidenceError(Exception):
    """The file is no evidence. One line: what, where, what to do."""


@dataclass(frozen=True)
class Audit:
    """What came of judging again."""

    holds: bool
    said: str
    """The recorded reason."""
    verdict: Verdict
    differences: tuple[str, ...]
    """Why it does not hold; or what differs although it does (versions, tier)."""


def evidence(
    task: Task,
    attempt: Attempt,
    build: Build,
    verdict: Mapping[str, Any],
    timing: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of an evidence file; `verdict` and `timing` as plain JSON values."""
    return {
        "format": FORMAT,
        "verifier": verifier_digest(),
        "task": task_to_json(task),
        "task_digest": task.digest,
        "attempt": dict(attempt.files),
        "attempt_digest": attempt.digest,
        "build": [
            {"source": library.source, "key": library.key, "sha256": _sha256(library.path)}
            for library in build.libraries
        ],
        "verdict": dict(verdict),
        "timing": None if timing is None else dict(timing),
    }


def read_evidence(path: Path) -> dict[str, Any]:
    """Raises EvidenceError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise EvidenceError(
            f"{path}: not JSON ({error}); give a file of verify --evidence"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise EvidenceError(f"{path}: not {FORMAT!r}; give a file of cuagent verify --evidence")
    return data


def audit(data: Mapping[str, Any], isolation: Isolation = "auto") -> Audit:
    """Judge again from the content of an evidence file.

    Raises EvidenceError, TaskError, NurseryError, OracleLost.
    """
    from cuagent.verify.referee import Referee
    from cuagent.verify.sanitize import gated

    try:
        task = task_from_json(dict(data["task"]))
        attempt = Attempt(tuple(sorted(data["attempt"].items())))
        said = data["verdict"]
        seeds = [int(seed) for seed in said["seeds"]]
        forged = _forged(data, task, attempt)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError(f"the evidence is not whole: {type(error).__name__} {error}") from error
    build = build_sources(attempt, task.device)
    with Referee(task, isolation) as referee:
        verdict = referee.verify(attempt, build, again=seeds)
        if said["reason"] == Reason.MEMORY_FAULT:
            verdict = gated(referee, attempt, build, verdict)
    contrary = [*forged, *_contrary(said, verdict)]
    return Audit(
        holds=not contrary,
        said=said["reason"],
        verdict=verdict,
        differences=(*contrary, *_circumstances(data, verdict)),
    )


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


def _forged(data: Mapping[str, Any], task: Task, attempt: Attempt) -> list[str]:
    """Where the digests do not fit the texts."""
    said = data["verdict"]
    wrong = []
    if task.digest != data["task_digest"] or task.digest != said["task"]:
        wrong.append("the task's text is not the one of the verdict")
    if attempt.digest != data["attempt_digest"] or attempt.digest != said["attempt"]:
        wrong.append("the attempt's text is not the one of the verdict")
    return wrong


def _contrary(said: Mapping[str, Any], found: Verdict) -> list[str]:
    if said["accepted"] == found.accepted and said["reason"] == found.reason:
        return []
    if found.accepted and _of_timing(said):
        return []
    return [f"recorded: {said['reason']} ({said['detail']}); now: {found.reason} ({found.detail})"]


def _of_timing(said: Mapping[str, Any]) -> bool:
    """Whether it was refused for what showed itself only while it was timed."""
    timed = said["reason"] == Reason.CRASHED and said["detail"].startswith(WHILE_TIMED)
    return timed or said["reason"] == Reason.CLOCK_CONTRADICTION


def _circumstances(data: Mapping[str, Any], found: Verdict) -> list[str]:
    """What is other than it was, and need not matter."""
    said = data["verdict"]
    differ = []
    if found.accepted and _of_timing(said):
        differ.append("it was refused for its timing, which is not repeated; its values are right")
    if data["verifier"] != verifier_digest():
        differ.append("the verifier's own sources are other ones")
    for name, version in said["versions"].items():
        if found.versions.get(name) != version:
            differ.append(f"{name}: recorded {version}, now {found.versions.get(name)}")
    if said["tier"] != found.tier:
        differ.append(f"isolation: recorded {said['tier']}, now {found.tier}")
    return differ


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
