"""Comparison of two verdicts on the same seeds."""

from __future__ import annotations

from dataclasses import replace

from cuagent.audit.figures import disagreements
from cuagent.verdict import FIRST_DRAWS, Reason, Verdict


def test_notes_of_record_effort_are_not_compared() -> None:
    """An audit repeats only the draws, also of a verdict at record effort."""
    repeated = Verdict(True, Reason.ACCEPTED, "", "task", "attempt", seeds=(1, 2))
    sanitized = "compute-sanitizer memcheck: clean"
    recorded = replace(repeated, notes=(FIRST_DRAWS, sanitized))
    assert disagreements(recorded, repeated, coarse=False) == []
    other = replace(repeated, notes=("levels: 3 of the 8 draws that would cover every position",))
    assert disagreements(other, repeated, coarse=False)
