"""Two verdicts on the same seeds, figure by figure: what does not agree, a line each.

`coarse` is for verdicts that may differ in the last digits: of another machine, or of an attempt
whose answers vary. Errors and bounds may then differ by a factor of COARSE, or by what is small
beside the bound; draws that were made again because an output had changed are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cuagent.verdict import WHILE_TIMED, Reason
from cuagent.verify.tally import When

if TYPE_CHECKING:
    from cuagent.verdict import Draw, RuleResult, Verdict

EXACT = 1e-9
"""Relative."""
COARSE = 8.0
SMALL = 0.25
"""Of the bound."""
BY_VALUE = (Reason.ACCEPTED, Reason.WRONG_VALUES, Reason.LESS_PRECISE, Reason.NOT_DETERMINISTIC)
"""Reasons whose detail tells figures of the draws."""
OF_TOOLS = "compute-sanitizer"
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def disagreements(said: Verdict, found: Verdict, *, coarse: bool) -> list[str]:
    """Where the verdict `found` now is not the one that was recorded."""
    lines = _outcome(said, found)
    if not lines and not of_timing(said):
        lines += _detail(said, found, coarse)
    lines += _seeds(said.seeds, found.seeds, coarse)
    if not coarse and said.perturbations != found.perturbations:
        lines.append("other numbers of perturbations than are recorded")
    lines += _draws(said.draws, found.draws, coarse)
    for name in ("lax", "strict"):
        lines += _rule(name, getattr(said, name), getattr(found, name), coarse)
    if said.precision != found.precision:
        lines.append(f"precision: recorded {said.precision}, now {found.precision}")
    if (now := _own_notes(found)) != (then := _own_notes(said)):
        lines.append(f"notes: recorded {then}, now {now}")
    if not _plausible(said.seconds):
        lines.append("seconds: the parts exceed the whole")
    return lines


def of_timing(said: Verdict) -> bool:
    """Whether it was refused for what showed itself only while it was timed."""
    timed = said.reason is Reason.CRASHED and said.detail.startswith(WHILE_TIMED)
    return timed or said.reason in (Reason.WRONG_WHILE_TIMED, Reason.CLOCK_CONTRADICTION)


def _outcome(said: Verdict, found: Verdict) -> list[str]:
    if (said.accepted, said.reason) == (found.accepted, found.reason):
        return []
    if not said.accepted and found.accepted and of_timing(said):
        return []
    odd = said.accepted is not (said.reason is Reason.ACCEPTED)
    but = f", but {'' if said.accepted else 'not '}accepted" if odd else ""
    return [f"recorded: {said.reason}{but} ({said.detail}); now: {found.reason} ({found.detail})"]


def _detail(said: Verdict, found: Verdict, coarse: bool) -> list[str]:
    """Addresses and seconds in the words of a crash are never the same twice."""
    if coarse and said.reason is not Reason.ACCEPTED:
        return []
    exact = not coarse and said.reason in BY_VALUE
    then, now = (v.detail if exact else _NUMBER.sub("#", v.detail) for v in (said, found))
    return [] if then == now else [f"detail: recorded {said.detail!r}, now {found.detail!r}"]


def _seeds(said: Sequence[int], found: Sequence[int], coarse: bool) -> list[str]:
    """A rejected attempt whose answers vary may fail a round earlier or later."""
    both = min(len(said), len(found)) if coarse else max(len(said), len(found))
    if said[:both] == found[:both]:
        return []
    return [f"seeds: {len(said)} recorded, {len(found)} drawn now, not the same"]


WORDS = ("note", "hint")
"""Parts of a draw that say in words where it was refused."""


def _draws(said: Sequence[Draw], found: Sequence[Draw], coarse: bool) -> list[str]:
    if coarse:
        said, found = ([draw for draw in draws if not _repeated(draw)] for draws in (said, found))
    if len(said) != len(found):
        return [f"draws: {len(said)} recorded, {len(found)} now"]
    lines = []
    for number, (then, now) in enumerate(zip(said, found, strict=True), 1):
        parts = [f.name for f in fields(then) if not _alike(f.name, then, now, coarse)]
        lines += [
            f"draw {number} ({now.kind}): {part} recorded as {_shown(getattr(then, part))}, "
            f"now {_shown(getattr(now, part))}"
            for part in parts
        ]
    return lines


def _repeated(draw: Draw) -> bool:
    return draw.kind.endswith(When.AGAIN.value)


def _alike(part: str, then: Draw, now: Draw, coarse: bool) -> bool:
    a, b = getattr(then, part), getattr(now, part)
    if not isinstance(a, float):
        return a == b or (coarse and part in WORDS)
    scale = 1.0 if part == "ratio" else now.rms_bound
    return _near(a, b, scale, coarse)


def _near(a: float, b: float, bound: float, coarse: bool) -> bool:
    """`bound` is that of the figure: what is small beside it decides nothing."""
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


def _own_notes(verdict: Verdict) -> tuple[str, ...]:
    return tuple(note for note in verdict.notes if not note.startswith(OF_TOOLS))


def _plausible(seconds: dict[str, float]) -> bool:
    """Where the time went, within the whole; parts overlap nowhere."""
    total = seconds.get("total", 0.0)
    parts = [value for name, value in seconds.items() if name != "total"]
    return all(value >= 0 for value in parts) and sum(parts) <= total * (1 + EXACT)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "passed" if value else "failed"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
