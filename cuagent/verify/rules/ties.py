"""Indices among equals: any place that is tied with the right one is right, and no other is.

torch promises nothing about the order of equals but for stable sorts, and an honest kernel breaks
near-ties by its own roundoff. So an index is not compared with the reference's, but what lies at
its place with what lies at the reference's: `Places` holds, in fp64, what the reference chose from
(`places` finds out), and how far two elements may lie apart and still be taken for equal:

    slack = 2 (rms(m) + 3 max|z_r - z| + 5 min(u sqrt(K), 1e-4) rms(z))        for each line

z are the elements of the line in fp64, z_r in the reference's own precision, m how far they move at
most when inputs and weights are perturbed by 8 sqrt(K) u: the gates of the strict rule, twice,
because two elements are compared. Beside marks (`sizes`) the others are a line of their own.
Indices of one line of a sort or a topk must all be different, an index of a pooling must lie in its
window, and one of a cumulative maximum not behind its place.

Not covered: integers computed from an index; those are held to a range (`tolerance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Places:
    """What the indices of one output tensor, of shape S, were chosen from."""

    values: Tensor
    """[lines, places], fp64."""
    slack: Tensor
    """[lines, 2], fp64: between two that are no marks, and beside a mark; negative where only the
    reference's own index will do."""
    marks: Tensor
    """[lines], fp64: the least size of a mark (`sizes`)."""
    line: Tensor
    """int64 S: to which line each index belongs."""
    sizes: Tensor
    """int64 [d]: a line's extent along the d axes that it goes over."""
    low: Tensor
    """int64 S + [d]: the first admissible coordinates; [0] where all of a line are admissible."""
    high: Tensor
    """int64 S + [d]: the last ones."""
    distinct: Tensor
    """bool [1]: whether no two indices of a line may be the same."""

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def copied(self) -> Places:
        """In memory of its own."""
        return Places(*(tensor.clone() for tensor in self.tensors))


def places_of(several: Sequence[Tensor]) -> list[Places]:
    """From their tensors, one after the other."""
    size = len(fields(Places))
    return [Places(*several[at : at + size]) for at in range(0, len(several), size)]


def wrong_places(output: Tensor, declared: Tensor, precise: Tensor, places: Places) -> Tensor:
    """bool like `output`: where an index names what is not tied with what the reference's names."""
    import torch

    count = places.values.shape[1]
    given, right = output.long(), precise.long()
    inside = (given >= 0) & (given < count)
    named = given.clamp(0, count - 1)
    got, wanted = places.values[places.line, named], places.values[places.line, right]
    usual = got.abs().maximum(wanted.abs()) < places.marks[places.line]
    among, beside = places.slack[places.line].unbind(-1)
    slack = torch.where(usual, among, beside)
    tied = ((got == wanted) | ((got - wanted).abs() <= slack)) & (slack >= 0)
    if places.low.numel():
        coordinates = torch.stack(_unravelled(named, places.sizes.tolist()), dim=-1)
        tied &= ((coordinates >= places.low) & (coordinates <= places.high)).all(-1)
    wrong = ~((inside & tied) | (given == right) | (given == declared))
    if bool(places.distinct):
        keys = places.line * count + named
        _, which, times = keys.unique(return_inverse=True, return_counts=True)
        wrong |= times[which] > 1
    return wrong


def _unravelled(index: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(index % size)
        index = index // size
    return coordinates[::-1]
