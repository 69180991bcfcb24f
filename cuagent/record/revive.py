"""Records back to what they were made from: judgements and other frozen dataclasses.

The inverse of `plain` for dataclasses whose annotations say what they hold. Not covered: values
that had no plain form and became their `repr`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from cuagent.attempt import HEADERS, KERNELS, MODULE, SOURCES, Attempt
from cuagent.record.inside import RecordError, parts_of

if TYPE_CHECKING:
    from cuagent.judge import Judgement
    from cuagent.measure.ladder import Ladder

Records = Sequence[Mapping[str, Any]]


def attempt_of(files: Mapping[str, Any]) -> Attempt:
    """The attempt with these texts by their paths. Raises RecordError.

    A path must be one that `freeze` gives: model_new.py, or a source below kernels/. So an attempt
    from a log never holds a file of another kind, and none that lies elsewhere.
    """
    for name, text in files.items():
        first, *others = parts_of(name)
        source = first == KERNELS and others and name.endswith(SOURCES + HEADERS)
        if not (name == MODULE or source) or not isinstance(text, str):
            raise RecordError(f"{name!r}: is no file of an attempt; the log is damaged or forged")
    return Attempt(tuple(sorted(files.items())))


def judgement_of(record: Mapping[str, Any]) -> Judgement:
    """The Judgement in a `judgement` record, whose `attempt` is the number in the run."""
    from cuagent.judge import Judgement

    judgement: Judgement = revive(Judgement, {**record, "attempt": record["verdict"]["attempt"]})
    return judgement


def judgements_of(records: Records) -> dict[int, Judgement]:
    """What holds of each attempt of a run: its judgement of record, else the last quick one."""
    quick: dict[int, Judgement] = {}
    settled: dict[int, Judgement] = {}
    for record in records:
        if record["type"] != "judgement":
            continue
        n, judgement = record["attempt"], judgement_of(record)
        if record["effort"] != "record":
            quick[n] = judgement
        elif judgement.verdict.accepted:
            settled[n] = judgement
        else:  # refused for the record: what was accepted before no longer is
            settled.pop(n, None)
            quick[n] = judgement
    return quick | settled


def ladder_of(records: Records) -> Ladder | None:
    """The ladder as it stands at the end of the log; None where it was not measured."""
    from cuagent.measure.ladder import Ladder

    last = next((r for r in reversed(records) if r["type"] == "ladder"), None)
    found: Ladder | None = None if last is None else revive(Ladder, last)
    return found


def ending(records: Records) -> Mapping[str, Any] | None:
    """The `end` record of a run that has ended, which was not taken back, nor the run taken up."""
    for record in reversed(records):
        if record["type"] == "end":
            return record
        if record["type"] == "resume" or record.get("why") == "undo":
            return None
    return None


def revive(kind: Any, value: Any) -> Any:
    """The value of type `kind` from its plain form; keys that `kind` does not have are left out.

    Raises KeyError, TypeError, ValueError or AttributeError where that is no form of it.
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
        known = {f.name for f in fields(kind)} & value.keys()
        return kind(**{name: revive(hints[name], value[name]) for name in known})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, (Enum, Path)):
        return kind(value)
    if kind in (str, bool, int) and not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} where {kind.__name__} is meant")
    return float(value) if kind is float else value
