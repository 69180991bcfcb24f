"""Which candidate to try next, from what came of the earlier ones.

A pure function of the task and the outcomes, so that a run can be replayed or resumed from its
conversation. The first candidate has everything that should help; then, from the best accepted one,
single choices are changed in the order of their expected gain. A refused kernel is first taken out
alone. Invariant: no two candidates have the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.candidate import Candidate, Options, Subject, make_candidate
from cuagent.timing import Ratio

MOST_ATTEMPTS = 6
CLEAR_GAIN = 1.05


@dataclass(frozen=True)
class Outcome:
    """What came of one candidate. `ratios` are baseline time over candidate time, a quick look."""

    candidate: Candidate
    accepted: bool
    reason: str
    attempt: int | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    """Kernel files that did not compile."""

    @property
    def sure(self) -> float:
        """The smallest lower limit of the ratios; 0 where there is none."""
        return min((r.low for r in self.ratios.values()), default=0.0)

    @property
    def is_clear(self) -> bool:
        """Faster than every baseline, by more than the noise."""
        return self.sure >= CLEAR_GAIN

    @property
    def is_slower(self) -> bool:
        """Slower than eager, by more than the noise."""
        eager = self.ratios.get("eager")
        return eager is not None and eager.high < 1


@dataclass(frozen=True)
class Proposal:
    candidate: Candidate
    why: str
    """One sentence: what is expected of it."""


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The accepted outcome that is surest to be fast: a wide interval flatters its middle."""
    return max((o for o in outcomes if o.accepted), key=lambda o: o.sure, default=None)


def propose(subject: Subject, outcomes: Sequence[Outcome]) -> Proposal | None:
    """The next candidate, or None where nothing is left that should help."""
    if len(outcomes) >= MOST_ATTEMPTS:
        return None
    seen = {tuple(sorted(o.candidate.files.items())) for o in outcomes}
    for options, why in _choices(subject, outcomes):
        candidate = make_candidate(subject, options)
        if candidate is not None and tuple(sorted(candidate.files.items())) not in seen:
            return Proposal(candidate, why)
    return None


def _choices(subject: Subject, outcomes: Sequence[Outcome]) -> Iterator[tuple[Options, str]]:
    if not outcomes:
        yield Options(), "everything that can be folded is folded, everything else fused"
        return
    best = best_of(outcomes)
    if best is None:
        yield from _repairs(outcomes[-1])
        return
    options = best.candidate.options
    yield (
        replace(options, merge=not options.merge),
        "linear layers of the same input as one product with stacked weights",
    )
    if subject.device == "cuda":
        for threads in (128, 256, 512):
            yield replace(options, threads=threads), f"{threads} threads for each row"
        yield replace(options, vector=False), "scalar accesses instead of 16-byte ones"
    elif not best.is_clear:
        for tile in (16, 256):
            yield replace(options, tile=tile), f"tiles of {tile} neighbouring rows"
    if not best.is_clear and len(best.candidate.kernels) > 1:
        for name, origins in zip(best.candidate.kernels, best.candidate.origins, strict=True):
            yield (
                replace(options, keep=options.keep | origins),
                f"without {name}, whose operators torch may do as well",
            )


def _repairs(failed: Outcome) -> Iterator[tuple[Options, str]]:
    """After a refusal: without the kernel that broke, else one after the other, then unfolded."""
    candidate, options = failed.candidate, failed.candidate.options
    parts = list(zip(candidate.kernels, candidate.origins, strict=True))
    for name, origins in parts:
        if any(name in path for path in failed.broken):
            yield (
                replace(options, keep=options.keep | origins),
                f"{name} does not compile, so its operators stay with torch",
            )
    if _of_precision(failed.reason) and options.fold and candidate.folded:
        yield replace(options, fold=False), "weights as they are, in case folding cost precision"
    for name, origins in parts:
        yield (
            replace(options, keep=options.keep | origins),
            f"without {name}, which may be what is wrong",
        )


def _of_precision(reason: str) -> bool:
    return "precise" in reason or "values" in reason
