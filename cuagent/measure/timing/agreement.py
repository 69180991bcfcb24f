"""Check the outputs of timed calls, applying the slow strict rule to few of them.

The oracle takes longer to judge an output than an arm takes for a call, so it cannot judge every
output. Eager's outputs for the same inputs are available and right. The strict rule judges some
calls at random. Another output is accepted if its distance from eager's is at most that of an
output that passed the strict rule; the rule judges every output that is further away.

Invariant: if eager is timed, an output that was accepted without the strict rule is at most `SLACK`
times further from eager's output than one that the rule accepted.
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
"""An output needs no strict rule if its distance from eager's is at most this factor times that of
an output that the rule accepted. Roundoff errors vary that much from draw to draw."""

Judge = Callable[[int, "Sequence[Tensor]"], RuleResult]
"""Function that applies the strict rule to output tensors: takes the slot of the inputs and the
outputs."""


@dataclass(frozen=True)
class Distance:
    """Distance between an output tensor of the candidate and the same tensor of eager."""

    rms: float = 0.0
    """Root mean square of the differences."""
    most: float = 0.0
    """Largest absolute difference."""
    unequal: int = 0
    """Number of integer elements that differ, plus elements where only one tensor is NaN or Inf."""

    def within(self, other: Distance) -> bool:
        """Return True if `rms` and `most` are at most `SLACK` times those of `other`, and `unequal`
        is not larger."""
        return (
            self.rms <= SLACK * other.rms
            and self.most <= SLACK * other.most
            and self.unequal <= other.unequal
        )

    def elementwise_max(self, other: Distance) -> Distance:
        """Return a distance with the larger of both values for each field."""
        return Distance(
            max(self.rms, other.rms),
            max(self.most, other.most),
            max(self.unequal, other.unequal),
        )


@dataclass
class Agreement:
    """Judges one candidate's timed outputs, by the strict rule or by their distance from
    eager's."""

    judge: Judge
    accepted: list[Distance] = field(default_factory=list)
    """Largest distance from eager's output that the strict rule has accepted, of each output
    tensor."""

    def first_wrong(
        self,
        slots: Sequence[int],
        outputs: Sequence[Sequence[Tensor]],
        expected: Sequence[Sequence[Tensor]] | None,
        sample: int,
    ) -> str:
        """Judge the outputs of a block; return one line about the first that is wrong, or "".

        `expected` are eager's outputs, or None if eager is not timed. The strict rule judges
        `sample` randomly chosen outputs in any case.
        """
        chosen = set(random.SystemRandom().sample(range(len(slots)), min(sample, len(slots))))
        for call, output in enumerate(outputs):
            measured = None if expected is None else distances(output, expected[call])
            if call in chosen or (measured is not None and not self._is_within_accepted(measured)):
                result = self.judge(slots[call], output)
                if not result.passed:
                    return f"call {call + 1} of {len(slots)} was wrong: {result.detail}"
                if measured is not None:
                    self._accept(measured)
        return ""

    def _is_within_accepted(self, measured: Sequence[Distance]) -> bool:
        accepted = self.accepted or [Distance()] * len(measured)
        return all(one.within(limit) for one, limit in zip(measured, accepted, strict=True))

    def _accept(self, measured: Sequence[Distance]) -> None:
        accepted = self.accepted or [Distance()] * len(measured)
        self.accepted = [a.elementwise_max(b) for a, b in zip(accepted, measured, strict=True)]


def distances(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Distance]:
    """Return the distance between each output tensor and eager's."""
    return [_distance(x, r) for x, r in zip(outputs, expected, strict=True)]


def _distance(x: Tensor, r: Tensor) -> Distance:
    import torch

    if not x.numel() or torch.equal(x, r):
        return Distance()
    if not (r.is_floating_point() or r.is_complex()):
        return Distance(unequal=int((x != r).sum()))
    squares, most, unequal = 0.0, 0.0, 0
    for here, there in in_blocks(x, r):
        same = (here == there) | (here.isnan() & there.isnan())
        difference = (here - there).abs().masked_fill_(same, 0).float()
        finite = difference.isfinite()
        unequal += int(difference.numel() - finite.sum())
        difference = difference.masked_fill_(~finite, 0)
        squares += float(difference.double().square().sum())
        most = max(most, float(difference.max()))
    return Distance(math.sqrt(squares / x.numel()), most, unequal)
