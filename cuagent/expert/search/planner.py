"""Choose the next candidate from the outcomes of the earlier ones.

The choice is a pure function of the task and the outcomes, so that a run can be replayed or resumed
from its conversation. The first candidate has all rewrites and fusions that should help. Each later
one changes a single choice of the best accepted candidate, in the order of expected gain. After a
rejection, single kernels are removed first. Invariant: no two candidates have the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Subject
from cuagent.timing import Ratio

MAX_ATTEMPTS = 6
"""Candidates in one run."""
CLEAR_GAIN = 1.05
"""Smallest lower limit of a candidate's ratios from which its gain counts as clear."""


@dataclass(frozen=True)
class Outcome:
    """Result of one candidate. `ratios` are baseline time over candidate time at quick effort."""

    candidate: Candidate
    accepted: bool
    reason: str
    attempt: int | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    broken_files: tuple[str, ...] = ()
    """Kernel files that did not compile."""

    @property
    def lower_limit(self) -> float:
        """Smallest lower limit of the ratios; 0 without ratios."""
        return min((r.low for r in self.ratios.values()), default=0.0)

    @property
    def is_clear_gain(self) -> bool:
        """True if the candidate is faster than every baseline by more than the noise."""
        return self.lower_limit >= CLEAR_GAIN

    @property
    def is_slower(self) -> bool:
        """True if the candidate is slower than eager by more than the noise."""
        eager = self.ratios.get("eager")
        return eager is not None and eager.high < 1


@dataclass(frozen=True)
class Proposal:
    """The next candidate to try."""

    candidate: Candidate
    why: str
    """Description of the change, as part of a sentence."""


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the accepted outcome with the highest lower limit; None if none was accepted.

    The middle of a wide interval would overstate its speed.
    """
    return max((o for o in outcomes if o.accepted), key=lambda o: o.lower_limit, default=None)


def propose(subject: Subject, outcomes: Sequence[Outcome]) -> Proposal | None:
    """Return the next candidate, or None if no further change should help."""
    if len(outcomes) >= MAX_ATTEMPTS:
        return None
    seen = {tuple(sorted(o.candidate.files.items())) for o in outcomes}
    for options, why in _choices(subject, outcomes):
        candidate = make_candidate(subject, options)
        if candidate is not None and tuple(sorted(candidate.files.items())) not in seen:
            return Proposal(candidate, why)
    return None


def _choices(subject: Subject, outcomes: Sequence[Outcome]) -> Iterator[tuple[Options, str]]:
    if not outcomes:
        yield Options(), "fold all operators that can be folded, and fuse the others"
        return
    best = best_of(outcomes)
    if best is None:
        yield from _repairs(outcomes[-1])
        return
    options = best.candidate.options
    yield (
        replace(options, merge=not options.merge),
        "compute linear layers of the same input as one product with stacked weights",
    )
    if subject.device == "cuda":
        for threads in (128, 256, 512):
            yield replace(options, threads=threads), f"use {threads} threads for each row"
        yield replace(options, vector=False), "use scalar accesses instead of 16-byte accesses"
    elif not best.is_clear_gain:
        for tile in (16, 256):
            yield replace(options, tile=tile), f"use tiles of {tile} adjacent rows"
    if not best.is_clear_gain and len(best.candidate.kernels) > 1:
        for name, origins in zip(best.candidate.kernels, best.candidate.origins, strict=True):
            yield (
                replace(options, keep=options.keep | origins),
                f"leave out {name}, because torch may run its operators as fast",
            )


def _repairs(failed: Outcome) -> Iterator[tuple[Options, str]]:
    """Yield the candidates after a rejection.

    First without the kernel that did not compile, then without folded weights if the error was one
    of values, then without each kernel.
    """
    candidate, options = failed.candidate, failed.candidate.options
    parts = list(zip(candidate.kernels, candidate.origins, strict=True))
    for name, origins in parts:
        if any(name in path for path in failed.broken_files):
            yield (
                replace(options, keep=options.keep | origins),
                f"leave the operators of {name} to torch, because it does not compile",
            )
    if _is_wrong_result(failed.reason) and options.fold and candidate.folded:
        yield replace(options, fold=False), "keep the weights unfolded, for more precision"
    for name, origins in parts:
        yield (
            replace(options, keep=options.keep | origins),
            f"leave out {name}, which may be wrong",
        )


def _is_wrong_result(reason: str) -> bool:
    return "precise" in reason or "values" in reason
