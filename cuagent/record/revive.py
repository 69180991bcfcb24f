"""Rebuild judgements and other frozen dataclasses from the records of a log.

`revive` is the inverse of `plain` for dataclasses whose annotations give the types of all fields.
Not covered: values of unknown types, which `plain` replaced by their `repr`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from cuagent.attempt import HEADERS, KERNELS, MODULE, SOURCES, Attempt
from cuagent.record.contained_files import RecordError, parts_of
from cuagent.task.step import Step
from cuagent.task.task import Task, recorded_precision

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.rungs import Ladder

Records = Sequence[Mapping[str, Any]]
WORK = ("message", "call", "attempt", "judgement")
"""Types of records that show that a run is working; `end_record` looks for them after the end."""


def attempt_of(files: Mapping[str, Any]) -> Attempt:
    """Return the attempt with these files (path to text).

    Each path must be model_new.py or a source below kernels/, so that a forged log cannot name
    other files; else RecordError is raised.
    """
    for name, text in files.items():
        first, *below = parts_of(name)
        source = first == KERNELS and below and name.endswith(SOURCES + HEADERS)
        if not (name == MODULE or source) or not isinstance(text, str):
            raise RecordError(
                f"{name[:80]!r}: is no file of an attempt; the log is damaged or forged"
            )
    return Attempt(tuple(sorted(files.items())))


def judgement_of(record: Mapping[str, Any]) -> Judgement:
    """Convert a `judgement` record to a Judgement.

    In the record `attempt` is the attempt's number in the run; in a Judgement it is the digest,
    which is taken from the record's verdict.
    """
    from cuagent.judgement import Judgement

    judgement: Judgement = revive(Judgement, {**record, "attempt": record["verdict"]["attempt"]})
    return judgement


def judgements_of(records: Records) -> dict[int, Judgement]:
    """Return the valid judgement of each attempt of a run, by the attempt's number.

    An attempt may have several: the one at record effort is valid if it accepts the attempt, else
    the latest one.
    """
    quick: dict[int, Judgement] = {}
    final: dict[int, Judgement] = {}
    for record in records:
        if record["type"] != "judgement":
            continue
        n, judgement = record["attempt"], judgement_of(record)
        if record["effort"] != "record":
            quick[n] = judgement
        elif judgement.verdict.accepted:
            final[n] = judgement
        else:  # A rejection at record effort replaces an earlier acceptance.
            final.pop(n, None)
            quick[n] = judgement
    return quick | final


def task_of(records: Records) -> Task:
    """Return the task of a run. The precision in an old record is converted to its present name."""
    data = records[0]["task"]
    task: Task = revive(Task, data)
    Step.of(task)  # raises ValueError if the text is not a step
    return replace(task, precision=recorded_precision(data))


def ladder_of(records: Records) -> Ladder | None:
    """Return the ladder that was recorded last; None if no ladder was measured."""
    from cuagent.measure.rungs import Ladder

    last = next((r for r in reversed(records) if r["type"] == "ladder"), None)
    found: Ladder | None = None if last is None else revive(Ladder, last)
    return found


def end_record(records: Records) -> Mapping[str, Any] | None:
    """Return the `end` record of a run; None if the run has not ended, or continued after undo or
    resume.

    A run that was only opened again has still ended, also with a message of the user that no model
    has read.
    """
    for record in reversed(records):
        if record["type"] == "end":
            return record
        queued = record["type"] == "message" and record["role"] == "user"
        if (record["type"] in WORK and not queued) or record.get("why") == "undo":
            return None
    return None


def revive(kind: Any, value: Any) -> Any:
    """Rebuild a value of type `kind` from its plain form `value`; ignore unknown keys.

    Raises KeyError, TypeError, ValueError or AttributeError if `value` does not fit `kind`.
    """
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not type(None))
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(revive(inner[0], item) for item in value)
    if origin is list:
        return [revive(inner[0], item) for item in value]
    if origin is dict:
        return {key: revive(inner[1], item) for key, item in value.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = {f.name for f in fields(kind)} & value.keys()
        return kind(**{name: revive(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, (Enum, Path)):
        return kind(value)
    if kind in (str, bool, int) and not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {str(value)[:40]!r}")
    return float(value) if kind is float else value
