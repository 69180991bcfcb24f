"""Create records of finished problems with given figures, in the form that a benchmark writes."""

from __future__ import annotations

from typing import Any

from cuagent.bench.results import FORMAT, Record


def ratio(value: float, spread: float = 0.02) -> dict[str, float]:
    return {"value": value, "low": value * (1 - spread), "high": value * (1 + spread)}


def solved(problem: str, over_compile: float = 1.5, **more: Any) -> Record:
    """Return the record of a problem with an accepted kernel. `seconds_each`: time of the kernel in
    seconds."""
    each = more.pop("seconds_each", 1e-3)
    family = more.pop("family", "elementwise")
    certificates = more.pop("certificates", [])
    record: Record = {
        "format": FORMAT,
        "key": f"key of {problem}",
        "problem": problem,
        "title": "",
        "group": "level 1",
        "settings": {"model": "expert", "device": "cpu"},
        "cuagent": "1.0",
        "time": "2026-11-23T00:00:00Z",
        "device": "a device",
        "status": "kernel",
        "reason": "accepted",
        "certification": {"certificates": certificates, "family": family},
        "lax": {"passed": True, "worst": 0.1, "detail": ""},
        "strict": {"passed": True, "worst": 0.1, "detail": ""},
        "times": {"candidate": {"median_s": each, "low_s": each * 0.98, "high_s": each * 1.02}},
        "best_rung": "compile",
        "ratios": {
            "eager": ratio(2 * over_compile),
            "compile": ratio(over_compile),
            "best_rung": ratio(0.9 * over_compile),
            "free": ratio(1.5),
        },
        "floor_s": each / 2,
        "bound": "memory",
        "roofline_share": 0.5,
        "parts": {"compiler": 2.0, "kernel": over_compile},
        "attempts": 1,
        "lax_passed": 1,
        "suspect": "",
        "algebra_only": False,
        "seconds": {"total_s": 12.0, "timing_s": 3.0, "shared_s": 4.0, "waiting_s": 0.0},
        "stages": {"opening_s": 4.0, "quick_timing_s": 2.25},
    }
    return record | more


def free_option(problem: str, rung: str = "compile+cuda_graph", **more: Any) -> Record:
    """Return the record of a problem whose best attempt (2.81x over eager) is slower than a rung
    (6.96x over eager)."""
    each = 1e-3
    record = solved(
        problem,
        status="free option",
        reason=f"no gain on top: attempt 1; {rung} is 6.96x over eager",
        best_rung=rung,
        ratios={
            "eager": ratio(6.96),
            "compile": ratio(4.63),
            "best_rung": ratio(1.0, 0.0),
            "free": ratio(6.96),
        },
        attempt_ratios={"eager": ratio(2.81), "compile": ratio(1.87), "best_rung": ratio(0.4)},
        times={
            "eager": {"median_s": 6.96 * each, "low_s": None, "high_s": None},
            rung: {"median_s": each, "low_s": each * 0.98, "high_s": each * 1.02},
            "candidate": {"median_s": 2.5 * each, "low_s": 2.4 * each, "high_s": 2.6 * each},
        },
    )
    return record | more


def unsolved(problem: str, status: str = "failed", reason: str = "it broke", **more: Any) -> Record:
    """Return the record of a problem without a kernel."""
    kept = ("format", "key", "problem", "title", "group", "settings", "cuagent", "time", "seconds")
    whole = solved(problem)
    record = {key: whole[key] for key in kept}
    return record | {"status": status, "reason": reason} | more


def degenerate(kind: str) -> dict[str, Any]:
    return {"kind": kind, "detail": "found", "degenerate": True}
