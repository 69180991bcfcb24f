"""Choose the next candidate from the outcomes of the earlier ones, or end the search.

The choice is a pure function of the task and the outcomes, so that a run can be replayed or resumed
from its conversation. `choices` lists what may be tried next. The search ends when the measurements
show that no further candidate can be a clear gain (`Bounds`). Invariant: no two candidates have the
same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuagent.expert.candidate import Candidate
from cuagent.expert.capture.subject import Subject
from cuagent.expert.search.choices import candidate_of, choices
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import NO_BOUNDS, Bounds, Outcome, best_of

MAX_ATTEMPTS = 6
"""Largest number of candidates in one run."""
IDLE_TRIES = {"cpu": 1, "cuda": 2}
"""Number of consecutive candidates without a sure gain after which the search ends, by device.

On a CPU each costs more time than its choices have gained in the examples. On an H200 each takes 8
to 14 seconds, and the third was the slowest of the search in both problems whose steps were timed.
"""
TRYING_S = 20.0
"""Seconds that candidates without a sure gain may take to be judged, if the best one is a clear
gain.

Other tiles gained 5 % in 3 of 18 attempts on an H200. In ten runs the best candidate was the first
in six and the second in four; later ones took 4 to 24 s each. A verdict on gigabytes takes 20 s or
more."""
NO_MEMORY = Memory()


@dataclass(frozen=True)
class Proposal:
    """A candidate to try next, and the reason."""

    candidate: Candidate
    why: str
    """Difference to the best candidate, as part of a sentence."""


def propose(
    subject: Subject,
    outcomes: Sequence[Outcome],
    bounds: Bounds = NO_BOUNDS,
    memory: Memory = NO_MEMORY,
) -> Proposal | None:
    """Return the next candidate to try; None if no further change should help.

    `memory` has the options to try first, and the options to omit.
    """
    best = best_of(outcomes)
    if len(outcomes) >= MAX_ATTEMPTS or bounds.rung_is_optimal:
        return None
    if best is not None and (bounds.end_search(best) or _is_idle(subject, outcomes)):
        return None
    seen = {tuple(sorted(o.candidate.files.items())) for o in outcomes}
    for options, why in choices(subject, outcomes, bounds, memory):
        if outcomes and options in memory.slower:
            continue
        candidate = candidate_of(subject, options)
        if candidate is not None and tuple(sorted(candidate.files.items())) not in seen:
            return Proposal(candidate, why)
    return None


def _is_idle(subject: Subject, outcomes: Sequence[Outcome]) -> bool:
    """Return True if none of the last candidates was surely faster than an earlier accepted one."""
    best = best_of(outcomes)
    tries = IDLE_TRIES[subject.device]
    if best is not None and best.is_clear_gain and best.judged_s > 0:
        tries = min(tries, int(TRYING_S / best.judged_s))
    first = max(0, len(outcomes) - tries)
    best, last = best_of(outcomes[:first]), outcomes[first:]
    return best is not None and all(o.lower_limit <= best.speedup for o in last)
