"""Compare two verdicts on the same seeds, figure by figure; return one line per disagreement.

A `coarse` comparison is for verdicts that may differ in the last digits: from another machine, or
of an attempt whose answers vary. Errors and bounds may then differ by a factor of COARSE, or by
SMALL times the bound. Draws that were repeated because an output had changed are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cuagent.verdict import FIRST_DRAWS, WHILE_TIMED, Reason
from cuagent.verify.rules.bounds import OWN_ARITHMETIC
from cuagent.verify.tally import When

if TYPE_CHECKING:
    from cuagent.verdict import Draw, RuleResult, Verdict

EXACT = 1e-9
"""Relative tolerance of an exact comparison."""
COARSE = 8.0
"""Largest factor between two figures that agree in a coarse comparison."""
SMALL = 0.25
"""Two figures also agree in a coarse comparison if they differ by at most this share of the bound.
"""
BY_VALUE = (Reason.ACCEPTED, Reason.WRONG_VALUES, Reason.LESS_PRECISE, Reason.NOT_DETERMINISTIC)
"""Verdict reasons whose detail text contains figures of the draws, so that it must agree exactly.
"""
UNCOMPARED_NOTES = (
    "compute-sanitizer",
    "data races",
    "its text reads its surroundings",
    FIRST_DRAWS,
)
"""First words of notes that are not compared: they come from record effort only, or from the
attempt's text."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def disagreements(said: Verdict, found: Verdict, *, coarse: bool) -> list[str]:
    """Return one line for each figure in which `found` differs from the recorded verdict `said`."""
    lines = _outcome(said, found)
    if not lines and not rejected_by_timing(said):
        lines += _detail(said, found, coarse)
    lines += _seeds(said.seeds, found.seeds, coarse)
    if not coarse and said.perturbations != found.perturbations:
        lines.append("the numbers of perturbations differ from the recorded ones")
    lines += _draws(said.draws, found.draws, coarse)
    for name in ("lax", "strict"):
        lines += _rule(name, getattr(said, name), getattr(found, name), coarse)
    # Before settings were recorded, `match` had the meaning that `fp32` has now.
    renamed = not said.settings and {said.precision, found.precision} == set(OWN_ARITHMETIC)
    if said.precision != found.precision and not renamed:
        lines.append(f"precision: recorded {said.precision}, now {found.precision}")
    lines += _contract(said, found, coarse) if said.settings else []
    if (now := _verifier_notes(found)) != (then := _verifier_notes(said)):
        lines.append(f"notes: recorded {then}, now {now}")
    if not _plausible(said.seconds):
        lines.append("seconds: the parts exceed the total")
    return lines


def _contract(said: Verdict, found: Verdict, coarse: bool) -> list[str]:
    """Compare the torch settings and the recorded errors of reference and candidate."""
    lines = []
    if said.settings != found.settings:
        lines.append(f"settings: recorded {said.settings!r}, now {found.settings!r}")
    factor = COARSE if coarse else 1 + EXACT
    for name in sorted(said.errors.keys() | found.errors.keys()):
        then, now = said.errors.get(name, math.nan), found.errors.get(name, math.nan)
        same = then == now or (then <= factor * now and now <= factor * then)
        if not same and not (coarse and name == "candidate" and not found.accepted):
            lines.append(f"errors: {name} recorded as {then:.3g}, now {now:.3g}")
    return lines


def rejected_by_timing(said: Verdict) -> bool:
    """Return True if the attempt was rejected during timing, which an audit does not repeat."""
    timed = said.reason is Reason.CRASHED and said.detail.startswith(WHILE_TIMED)
    return timed or said.reason in (Reason.WRONG_WHILE_TIMED, Reason.CLOCK_CONTRADICTION)


def _outcome(said: Verdict, found: Verdict) -> list[str]:
    if (said.accepted, said.reason) == (found.accepted, found.reason):
        return []
    if not said.accepted and found.accepted and rejected_by_timing(said):
        return []
    inconsistent = said.accepted is not (said.reason is Reason.ACCEPTED)
    but = f", but {'' if said.accepted else 'not '}accepted" if inconsistent else ""
    return [f"recorded: {said.reason}{but} ({said.detail}); now: {found.reason} ({found.detail})"]


def _detail(said: Verdict, found: Verdict, coarse: bool) -> list[str]:
    """Compare the detail texts. Numbers in them (addresses, seconds) are ignored unless the detail
    contains figures of the draws."""
    if coarse and said.reason is not Reason.ACCEPTED:
        return []
    exact = not coarse and said.reason in BY_VALUE
    then, now = (v.detail if exact else _NUMBER.sub("#", v.detail) for v in (said, found))
    return [] if then == now else [f"detail: recorded {said.detail!r}, now {found.detail!r}"]


def _seeds(said: Sequence[int], found: Sequence[int], coarse: bool) -> list[str]:
    """Compare the seeds; in a coarse comparison, only those that both verdicts have.

    A rejected attempt whose answers vary may fail a round earlier or later.
    """
    count = min(len(said), len(found)) if coarse else max(len(said), len(found))
    if said[:count] == found[:count]:
        return []
    return [f"seeds: {len(said)} recorded, {len(found)} drawn now, not the same"]


WORDS = ("note", "hint")
"""Fields of a draw with text, which a coarse comparison ignores."""


def _draws(said: Sequence[Draw], found: Sequence[Draw], coarse: bool) -> list[str]:
    if coarse:
        said, found = ([draw for draw in draws if not _repeated(draw)] for draws in (said, found))
    if len(said) != len(found):
        return [f"draws: {len(said)} recorded, {len(found)} now"]
    lines = []
    for number, (then, now) in enumerate(zip(said, found, strict=True), 1):
        parts = [f.name for f in fields(then) if not _agrees(f.name, then, now, coarse)]
        lines += [
            f"draw {number} ({now.kind}): {part} recorded as {_shown(getattr(then, part))}, "
            f"now {_shown(getattr(now, part))}"
            for part in parts
        ]
    return lines


def _repeated(draw: Draw) -> bool:
    return draw.kind.endswith(When.AGAIN.value)


def _agrees(part: str, then: Draw, now: Draw, coarse: bool) -> bool:
    a, b = getattr(then, part), getattr(now, part)
    if not isinstance(a, float):
        return a == b or (coarse and part in WORDS)
    scale = 1.0 if part == "ratio" else now.rms_bound
    return _near(a, b, scale, coarse)


def _near(a: float, b: float, bound: float, coarse: bool) -> bool:
    """Return True if two figures agree; a coarse comparison allows a factor of COARSE or a
    difference of SMALL times `bound`."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    if not coarse:
        return math.isclose(a, b, rel_tol=EXACT)
    low, high = sorted((abs(a), abs(b)))
    return high <= COARSE * low or abs(a - b) <= SMALL * bound


def _rule(name: str, said: RuleResult | None, found: RuleResult | None, coarse: bool) -> list[str]:
    if said is None or found is None:
        return [] if said is found else [f"{name} rule: in one of the two verdicts only"]
    same = said.passed == found.passed and _near(said.worst, found.worst, 1.0, coarse)
    if same and (coarse or said.detail == found.detail):
        return []
    return [
        f"{name} rule: recorded {_shown(said.passed)} at {said.worst:.4g} of the bound "
        f"({said.detail}), now {_shown(found.passed)} at {found.worst:.4g} ({found.detail})"
    ]


def _verifier_notes(verdict: Verdict) -> tuple[str, ...]:
    return tuple(note for note in verdict.notes if not note.startswith(UNCOMPARED_NOTES))


def _plausible(seconds: dict[str, float]) -> bool:
    """Return True if no part is negative and the sum of the parts is at most the total."""
    total = seconds.get("total", 0.0)
    parts = [value for name, value in seconds.items() if name != "total"]
    return all(value >= 0 for value in parts) and sum(parts) <= total * (1 + EXACT)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "passed" if value else "failed"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
