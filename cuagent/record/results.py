"""Format results for `--json`, `--output-format` and MCP: one schema, with units in the keys.

Each result begins with `schema` and `command`. A key of a measured quantity ends with its unit:
`_s` seconds, `_bytes`, `_per_s`, `_usd`; `_share` is a number from 0 to 1. The keys are in
docs/reference/json.md. The run log has a form of its own (`plain`), so that old logs can be read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuagent.record.plain import plain

if TYPE_CHECKING:
    from cuagent.judgement import Judgement
    from cuagent.measure.profile.profile import Profile
    from cuagent.measure.rungs import Ladder
    from cuagent.timing import Timing

SCHEMA = "cuagent result 1"
"""Name and version of the schema. The version increases if a key is renamed, removed or changes its
meaning, and not if a key is added."""

KEYS: dict[str, dict[str, str]] = {
    "Arm": {
        "median": "median_s",
        "samples": "samples_s",
        "compile_seconds": "compile_s",
        "charged": "charged_s",
    },
    "Build": {"seconds": "duration_s"},
    "Ceilings": {
        "copy": "copy_bytes_per_s",
        "fp32": "fp32_flop_per_s",
        "tf32": "tf32_flop_per_s",
        "bf16": "bf16_flop_per_s",
        "fp16": "fp16_flop_per_s",
    },
    "Cost": {"seconds": "time_s", "gap": "gap_s"},
    "Gain": {"error": "relative_error"},
    "Floor": {"seconds": "floor_s", "memory": "memory_floor_s"},
    "Ladder": {"seconds": "duration_s", "when": "measured_at_s", "busy": "others_share"},
    "Library": {"seconds": "duration_s"},
    "Profile": {
        "seconds": "call_s",
        "busy": "gpu_busy_s",
        "memory": "memory_bytes",
        "others": "others_share",
    },
    "Rung": {
        "seconds": "median_s",
        "error": "relative_error",
        "opened_s": "open_s",
        "memory": "memory_bytes",
    },
    "Spent": {"seconds": "duration_s", "cost": "cost_usd"},
    "Timing": {"seconds": "duration_s", "busy": "others_share", "apart": "twin_log_ratios"},
    "ToolFinished": {"seconds": "duration_s"},
    "Verdict": {"seconds": "parts_s", "errors": "relative_errors"},
}
"""JSON key of a field, by class and field name, for fields whose names do not end with the unit."""

COUNTERS = {
    "seconds": "duration_s",
    "dram_bytes_read": "dram_read_bytes",
    "dram_bytes_written": "dram_written_bytes",
}
"""JSON keys of those hardware counters whose names do not end with the unit."""


def public(value: Any) -> Any:
    """Convert a value to plain JSON values, with the keys of the schema."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__
        keys = KEYS.get(kind, {})
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {keys.get(n, n): public(v) for n, v in fields.items()} | _derived(kind, value)
    if isinstance(value, Mapping):
        return {str(key): public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    return plain(value)


def result(command: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return the JSON object that a command prints: the schema, the fields of `value`, and
    `more`."""
    return {"schema": SCHEMA, "command": command} | public(value) | public(more)


def _derived(kind: str, value: Any) -> dict[str, Any]:
    """Return additional JSON keys for an object of class `kind`: figures computed from its
    fields."""
    match kind:
        case "Judgement":
            return _judgement(value)
        case "Timing":
            return _timing(value)
        case "Ladder":
            return _ladder(value)
        case "Profile":
            return _profile(value)
        case "Counters":
            return {"values": {COUNTERS.get(n, n): plain(v) for n, v in value.values.items()}}
        case _:
            return {}


def _judgement(value: Judgement) -> dict[str, Any]:
    return {
        "gains": value.is_faster,
        "adds": value.beats_best_rung,
        "contract": value.contract,
    }


def _timing(value: Timing) -> dict[str, Any]:
    return {
        "suspect": value.suspect,
        "roofline_share": plain(value.share),
        "remarks": list(value.remarks),
    }


def _ladder(value: Ladder) -> dict[str, Any]:
    best, chosen = value.best, value.chosen
    names = {"best": best.name if best else None, "chosen": chosen.name if chosen else None}
    return names | {"contract": value.contract}


def _profile(value: Profile) -> dict[str, Any]:
    roofline = value.roofline
    return {
        "notes": value.notes(),
        "floor_s": plain(roofline.floor),
        "bound": roofline.bound,
        "roofline_share": plain(roofline.share(value.seconds)),
    }
