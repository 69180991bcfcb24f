"""A judged attempt of a run, and the choice among attempts: which is best, which to judge for the
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt

if TYPE_CHECKING:
    from cuagent.judgement import Judgement


@dataclass(frozen=True)
class Tried:
    """One numbered attempt of the run, with the latest judgement on it."""

    n: int
    attempt: Attempt
    commit: str
    """Hash of the attempt's commit in the work folder's git history; "" without one."""
    judgement: Judgement

    @property
    def accepted(self) -> bool:
        return self.judgement.verdict.accepted

    @property
    def rank(self) -> tuple[int, bool, float]:
        """Sort key of the attempt; larger is better (`Judgement.rank`)."""
        return self.judgement.rank


def best_of(tried: Iterable[Tried]) -> Tried | None:
    """Return the attempt of the highest rank; None without one."""
    return max(tried, key=lambda t: t.rank, default=None)


def next_to_settle(tried: Iterable[Tried], settled: Mapping[int, Tried]) -> Tried | None:
    """Return the attempt to judge at record effort next: the best open one that may be better than
    the best of the `settled` ones, which were judged so (keys are their numbers).

    It may be better if its reward is higher, or if the lower limit of its gain is above the gain of
    the settled one. None if no attempt may be better.
    """
    best = best_of(t for t in tried if t.accepted and t.n not in settled)
    final = best_of(settled.values())
    if best is None or final is None:
        return best
    seen, known = best.judgement, final.judgement
    earns_more = seen.score.reward > known.score.reward
    return best if earns_more or seen.exceeds(known) else None


def rival_of(judgement: Judgement, *, kernels_only: bool) -> str:
    """Return the name of the baseline because of which an attempt is not judged for the record.

    "" if it is to be judged. With `kernels_only` no rung can be the result, so only eager counts.
    """
    if kernels_only and not judgement.loses_to_eager:
        return ""
    return judgement.loses_to
