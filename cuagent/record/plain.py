"""Convert frozen dataclasses to plain JSON values; `revive` is the inverse.

Invariant: `json.dumps(..., allow_nan=False)` accepts every value that `plain` returns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuagent.judgement import Judgement


def plain(value: Any) -> Any:
    """Convert a value to dicts, lists, strings, numbers, booleans and None.

    JSON has no infinities and no NaN, so they become the strings "inf", "-inf" and "nan". A value
    of an unknown type becomes its `repr`.
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
    """Convert a judgement to plain JSON values, and add figures that are computed from it.

    `gains`: True if the attempt is faster than eager. `adds`: True if it is faster than the best
    rung. `contract`: a line about torch's settings and errors. In `timing`: SUSPECT flag, share of
    the roofline, remarks.
    """
    values: dict[str, Any] = plain(judgement) | {
        "gains": judgement.is_faster,
        "adds": judgement.beats_best_rung,
        "contract": judgement.contract,
    }
    if (timing := judgement.timing) is not None:
        derived = {"suspect": timing.suspect, "share": timing.share, "remarks": timing.remarks}
        values["timing"] |= plain(derived)
    return values
