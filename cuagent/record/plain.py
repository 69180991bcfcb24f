"""Frozen dataclasses to plain JSON values, and nothing back: readers take the plain values.

Invariant: what `plain` returns survives `json.dumps(..., allow_nan=False)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuagent.judge import Judgement


def plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None.

    Infinite and undefined numbers become the strings "inf", "-inf" and "nan", which JSON lacks;
    what has no plain form becomes its `repr`.
    """
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Path():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return repr(value)


def plain_judgement(judgement: Judgement) -> dict[str, Any]:
    """A judgement with what follows from it: doubts, the share of the roofline, what it adds."""
    told: dict[str, Any] = plain(judgement) | {
        "gains": judgement.is_faster,
        "adds": judgement.beats_best_rung,
    }
    if (timing := judgement.timing) is not None:
        more = {"suspect": timing.suspect, "share": timing.share, "remarks": timing.remarks}
        told["timing"] |= plain(more)
    return told
