"""Whether timed calls did the work: by the strict rule, asked where it matters.

The oracle takes longer over an answer than the arms take for a call, so it cannot be asked about
each. But eager's outputs for the same inputs are at hand, and right. An output that lies no further
from eager's than one that passed the strict rule is as good as that one; whatever lies further off
is judged itself, and so are some calls at random.

Invariant: no output of a timed block that the strict rule would refuse lies further from eager's
than one that it admitted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cuagent.verdict import RuleResult
from cuagent.verify.tensors import in_blocks

if TYPE_CHECKING:
    from torch import Tensor

SLACK = 1.1
"""Errors of roundoff vary from draw to draw; so much more than what passed is not asked about."""

Judge = Callable[[int, "Sequence[Tensor]"], RuleResult]
"""The strict rule on the output for a slot."""


@dataclass(frozen=True)
class Distance:
    """How far a tensor lies from eager's."""

    rms: float = 0.0
    most: float = 0.0
    unequal: int = 0
    """Integers that differ, and NaN or Inf in other places."""

    def within(self, other: Distance) -> bool:
        return (
            self.rms <= SLACK * other.rms
            and self.most <= SLACK * other.most
            and self.unequal <= other.unequal
        )

    def or_further(self, other: Distance) -> Distance:
        return Distance(
            max(self.rms, other.rms),
            max(self.most, other.most),
            max(self.unequal, other.unequal),
        )


@dataclass
class Agreement:
    """What was found of one candidate's timed outputs so far."""

    judge: Judge
    admitted: list[Distance] = field(default_factory=list)
    """The furthest of each tensor of the output that passed the strict rule."""

    def wrong(
        self,
        slots: Sequence[int],
        outputs: Sequence[Sequence[Tensor]],
        right: Sequence[Sequence[Tensor]] | None,
        sample: int,
    ) -> str:
        """One line about an output of a block that is refused, or nothing.

        `right` are eager's, where it is timed too; `sample` calls are judged in any case.
        """
        chosen = set(random.SystemRandom().sample(range(len(slots)), min(sample, len(slots))))
        for call, given in enumerate(outputs):
            apart = None if right is None else distances(given, right[call])
            if call in chosen or (apart is not None and not self._as_near(apart)):
                result = self.judge(slots[call], given)
                if not result.passed:
                    return f"call {call + 1} of {len(slots)} was wrong: {result.detail}"
                if apart is not None:
                    self._admit(apart)
        return ""

    def _as_near(self, apart: Sequence[Distance]) -> bool:
        known = self.admitted or [Distance()] * len(apart)
        return all(found.within(passed) for found, passed in zip(apart, known, strict=True))

    def _admit(self, apart: Sequence[Distance]) -> None:
        known = self.admitted or [Distance()] * len(apart)
        self.admitted = [a.or_further(b) for a, b in zip(known, apart, strict=True)]


def distances(given: Sequence[Tensor], right: Sequence[Tensor]) -> list[Distance]:
    """One for each tensor of an output."""
    return [_distance(x, r) for x, r in zip(given, right, strict=True)]


def _distance(x: Tensor, r: Tensor) -> Distance:
    import torch

    if not x.numel() or torch.equal(x, r):
        return Distance()
    if not (r.is_floating_point() or r.is_complex()):
        return Distance(unequal=int((x != r).sum()))
    squares, most, unequal = 0.0, 0.0, 0
    for here, there in in_blocks(x, r):
        same = (here == there) | (here.isnan() & there.isnan())
        apart = (here - there).abs().masked_fill_(same, 0).float()
        number = apart.isfinite()
        unequal += int(apart.numel() - number.sum())
        apart = apart.masked_fill_(~number, 0)
        squares += float(apart.double().square().sum())
        most = max(most, float(apart.max()))
    return Distance(math.sqrt(squares / x.numel()), most, unequal)
