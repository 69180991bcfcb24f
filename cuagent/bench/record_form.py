"""The form of a benchmark's record: which fields it has, and of which types.

A file of results may come with a cloned repository. Readers compute with its figures, so a record
of another form is left out. `docs/guides/bench.md` lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuagent.arms import CANDIDATE

TEXTS = ("problem", "key", "title", "group", "status", "reason", "cuagent", "time")
"""Fields that every record has as a string."""
OPTIONAL_TEXTS = ("device", "best_rung", "bound", "suspect", "arithmetic")
NUMBERS = ("roofline_share", "attempts", "lax_passed")
KERNEL, FREE = "kernel", "free option"
"""Statuses of a problem with a result: a kernel that is surely faster than the best free option, or
the best free option, if it is surely faster than eager. By the rule kernels-only a kernel must be
faster than eager, and no free option is a result."""
RESULTS = (KERNEL, FREE)
LIMITS = ("low_s", "high_s")
"""Fields of a time that rungs of a quick ladder lack."""
CERTIFICATE = {"kind", "detail", "degenerate"}
SMALLEST, LARGEST = 1e-12, 1e12
"""Range of plausible ratios and times."""


def is_record(record: Mapping[str, Any]) -> bool:
    """Return True if the fields that readers use have the right types."""
    return (
        all(isinstance(record.get(name), str) for name in TEXTS)
        and isinstance(record.get("settings"), dict)
        and all(_optional(record, name, _is_text) for name in OPTIONAL_TEXTS)
        and all(_optional(record, name, _is_number) for name in NUMBERS)
        and _is_certification(record.get("certification", {}))
        and _all(record.get("seconds", {}), _is_number)
        and _are_times(record.get("times", {}))
        and (not record.get("floor_s") or (_is_measured(record["floor_s"]) and "bound" in record))
        and (record["status"] != KERNEL or "best_rung" in record)
        and (record["status"] != FREE or _is_text(record.get("best_rung")))
        and all(
            _optional(record, name, form)
            for name, form in (
                ("ratios", lambda table: _all(table, _is_ratio)),
                ("attempt_ratios", lambda table: _all(table, _is_ratio)),
                ("stages", lambda table: _all(table, _is_number)),
                ("parts", lambda table: _all(table, _is_measured) and None not in table.values()),
                ("lock", lambda table: isinstance(table, dict)),
                ("versions", lambda table: isinstance(table, dict)),
                ("lax", lambda table: isinstance(table, dict)),
                ("strict", lambda table: isinstance(table, dict)),
            )
        )
    )


def _optional(record: Mapping[str, Any], name: str, form: Callable[[Any], bool]) -> bool:
    value = record.get(name)
    return value is None or form(value)


def _all(table: Any, form: Callable[[Any], bool]) -> bool:
    return isinstance(table, dict) and all(value is None or form(value) for value in table.values())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    """Return True for a number between -LARGEST and LARGEST, not NaN."""
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST


def _is_measured(value: Any) -> bool:
    return _is_number(value) and value >= SMALLEST


def _is_ratio(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_measured(value.get(name)) for name in ("value", "low", "high")
    )


def _are_times(table: Any) -> bool:
    if not _all(table, lambda time: isinstance(time, dict) and _is_measured(time.get("median_s"))):
        return False
    result = table.get(CANDIDATE)
    times = [time for time in table.values() if time is not None]
    return all(_optional(time, name, _is_measured) for time in times for name in LIMITS) and (
        result is None or all(_is_measured(result.get(name)) for name in LIMITS)
    )


def _is_certification(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    certificates = value.get("certificates", [])
    return (
        isinstance(certificates, list)
        and all(isinstance(c, dict) and c.keys() >= CERTIFICATE for c in certificates)
        and isinstance(value.get("family", ""), str)
    )
