"""Rule for indices among equal elements: an index of any element tied with the right one is right.

torch guarantees the order of equal elements only for stable sorts, and the first of them for
argmax, argmin, max and min along a dimension. An honest kernel breaks near-ties by its own
roundoff. So the rule compares the elements that two indices name, not the indices: `Places` holds
the elements in fp64 (found by `oracle.places`) and the distance at which two elements still count
as equal:

    slack = 2 (rms(m) + 3 max|z_r - z| + 5 min(u sqrt(K), 1e-4) rms(z))        for each line

z are the elements of the line in fp64, z_r those in the reference's own precision, m their largest
change when inputs and weights are perturbed by 8 sqrt(K) u. These are the gates of the strict rule,
doubled since two elements are compared. The elements of a line that are no mask fill
(`magnitude_gaps`) have a slack of their own. Indices of one line of a sort or a topk must be
distinct, an index of a pooling must be in its window, and one of a cumulative maximum must not be
after its position. Where the first of equal elements is guaranteed and a line has the same elements
in both precisions, another index of an equal element is wrong.

Not covered: integers computed from an index; `tolerance` compares those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Places:
    """For the indices in one output tensor of shape S: the elements from which they were chosen."""

    values: Tensor
    """fp64 [lines, places]: the elements; each index names a place in one line."""
    slack: Tensor
    """fp64 [lines, 2]: largest difference of two elements that count as equal.

    [:, 0] applies to two ordinary elements, [:, 1] to pairs with a mask fill. Negative if only the
    reference's own index is right.
    """
    fill_sizes: Tensor
    """fp64 [lines]: smallest magnitude of a mask fill in a line; inf if it has none."""
    line: Tensor
    """int64 S: number of the line that each index refers to."""
    sizes: Tensor
    """int64 [d]: lengths of the d axes that a line spans."""
    low: Tensor
    """int64 S + [d]: first valid coordinates of each index within its line.

    An empty tensor if the whole line is valid.
    """
    high: Tensor
    """int64 S + [d]: last valid coordinates of each index; an empty tensor if the whole line is
    valid.
    """
    distinct: Tensor
    """bool [1]: True if the indices of a line must be distinct."""
    first: Tensor
    """bool [lines]: True if only the first of equal elements is right."""

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def copied(self) -> Places:
        """Return a copy with its own memory."""
        return Places(*(tensor.clone() for tensor in self.tensors))


def places_of(several: Sequence[Tensor]) -> list[Places]:
    """Return the Places whose `tensors` lists were concatenated to `several`."""
    size = len(fields(Places))
    return [Places(*several[at : at + size]) for at in range(0, len(several), size)]


def wrong_places(output: Tensor, declared: Tensor, precise: Tensor, places: Places) -> Tensor:
    """Return a mask of the wrong indices in `output`, the candidate's.

    An index is wrong if its element is not tied with the element that the reference's index names,
    or if it breaks another rule of `places`. `declared` and `precise` are the reference's indices.
    """
    import torch

    count = places.values.shape[1]
    given, right = output.long(), precise.long()
    inside = (given >= 0) & (given < count)
    named = given.clamp(0, count - 1)
    got, wanted = places.values[places.line, named], places.values[places.line, right]
    usual = got.abs().maximum(wanted.abs()) < places.fill_sizes[places.line]
    between_usual, with_fill = places.slack[places.line].unbind(-1)
    slack = torch.where(usual, between_usual, with_fill)
    tied = ((got == wanted) | ((got - wanted).abs() <= slack)) & (slack >= 0)
    if places.low.numel():
        coordinates = torch.stack(_unravelled(named, places.sizes.tolist()), dim=-1)
        tied &= ((coordinates >= places.low) & (coordinates <= places.high)).all(-1)
    later = places.first[places.line] & (got == wanted)
    wrong = ~((inside & tied & ~later) | (given == right) | (given == declared))
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
