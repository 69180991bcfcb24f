"""Variation of integer and boolean inputs that are the same in every draw of a task.

Position ids, bag offsets, lengths, a causal mask and a decode position are the same in every result
of get_inputs, so a kernel could ignore them. Each such tensor is replaced by one with the same
apparent properties: order, distinct values, first and last value, range, rows that are not empty.
If no such tensor exists, fewer properties are preserved. The reference must accept each
replacement.

Not covered: tensors that differ between draws, and those that `kinds` varies already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from cuagent.verify.inputs.random_values import randn, seeded

if TYPE_CHECKING:
    from torch import Generator, Tensor

TRIALS = 3
"""Number of changed tensors that the reference must accept before the change is used."""
TOP_OF_SMALL = 8
"""Exclusive upper limit of the integers that `Change.SMALL_NUMBER` draws."""
FLIPPED = 0.3
"""Share of a boolean mask's elements that `Change.MASK` flips."""
EMPTIED = 0.3
"""Share of lengths that `Change.EMPTY` sets to zero."""

MOST_ROWS = 64
"""Number of independent changes that are drawn if a tensor has more rows and all are equal."""

Accepts = Callable[["Tensor"], bool]


class Change(StrEnum):
    """Ways to change an integer or boolean input that is the same in every draw of get_inputs."""

    NUMBER = "one number, from 1 to below its own"
    SMALL_NUMBER = "one small number"
    SHORTER = "numbers between 1 and its own, one of them its own"
    PREFIX = "ones, then zeros"
    BITS = "zeros and ones"
    SPACED = "sorted, distinct, the same ends"
    SHIFTED = "shifted within the table"
    SUBSET = "a sorted subset of the table"
    RUNS = "sorted, the same values, runs of other lengths"
    REPEATED = "sorted, with repeated values, the same ends"
    SHUFFLED = "the same numbers of a row in another order"
    EMPTY = "some numbers zero, as of sequences without steps"
    MASK = "other places of a mask, no row emptied or filled"


@dataclass(frozen=True)
class Fixed:
    """An integer or boolean input tensor that is the same in every draw of get_inputs."""

    own: Tensor
    table: int
    """Length of the table that the tensor indexes; 0 if none is known."""
    changes: tuple[Change, ...] = ()
    """Changes of the tensor that the reference accepts."""

    def candidates(self) -> tuple[tuple[Change, ...], ...]:
        """Return sets of changes to try, in order.

        The first set preserves all apparent properties of the tensor (order, distinct values,
        ends); later sets preserve fewer.
        """
        import torch

        own = self.own
        if own.dtype is torch.bool:
            return ((Change.MASK,),)
        low, high = int(own.min()), int(own.max())
        if own.numel() == 1:
            return ((Change.NUMBER,) if high > 1 else (), (Change.SMALL_NUMBER,))
        if low == high:
            if high > 1:
                return ((Change.SHORTER,), (Change.SMALL_NUMBER,))
            return ((Change.PREFIX,) if high == 1 else (Change.BITS,), (Change.BITS,))
        rows = _rows(own)
        if not _ascends(rows) and not _ascends(rows.flip(-1)):
            return ((Change.SHUFFLED,),)
        if not _distinct(rows):
            return ((Change.RUNS,), (Change.REPEATED,))
        strict: tuple[Change, ...] = ()
        if high - low + 1 > rows.shape[1]:
            strict += (Change.SPACED,)
        if self.table > high + 1 and low >= 0:
            strict += (Change.SHIFTED, Change.SUBSET)
        return strict, (Change.REPEATED,), (Change.SHUFFLED,)

    def empties(self) -> tuple[Change, ...]:
        """Return changes that make a bag, a segment or a sequence empty.

        If the reference's output on them is finite, it defines the result of an empty bag, so a
        kernel must give the same. Offsets differ from position ids: they start with 0 and index no
        table.
        """
        import torch

        own = self.own
        if own.dtype is torch.bool or own.numel() == 1:
            return ()
        low, high = int(own.min()), int(own.max())
        if low >= 1 and high > 1:
            return (Change.EMPTY,)
        rows = _rows(own)
        if low != 0 or low == high or not _ascends(rows):
            return ()
        return (Change.REPEATED,) if self.table == 0 or not _distinct(rows) else ()

    def changed(self, change: Change, generator: Generator, step: int = 0) -> Tensor:
        """Return a copy of the tensor with `change` applied; `generator` draws the random numbers.

        `step` is the number of earlier draws of this change.
        """
        own = self.own
        if change is Change.MASK:
            return _other_mask(own, generator)
        if change is Change.EMPTY:
            return _emptied(own, generator)
        low, high = int(own.min()), int(own.max())
        match change:
            case Change.NUMBER:
                # Own draws have the number itself. The least one is often a special case.
                drawn = _integers(own, 1, max(high, 2), generator)
                drawn = drawn.fill_(1) if step % 2 else drawn
            case Change.SHORTER:
                drawn = _integers(own, 1, high + 1, generator)
                drawn.view(-1)[_integers(own.view(-1)[:1], 0, own.numel(), generator)] = high
            case Change.SMALL_NUMBER:
                # 0 and 1 are often special cases, so that a single number has others first.
                least = 2 if own.numel() == 1 and step % 2 == 0 else 0
                drawn = _integers(own, least, TOP_OF_SMALL, generator)
                if own.numel() == 1:
                    # Own draws have the number itself, so another one is drawn here.
                    other = least + (drawn + 1 - least) % (TOP_OF_SMALL - least)
                    drawn = drawn.where(drawn != own.view(-1), other)
            case Change.PREFIX:
                drawn = _prefixes(own, generator)
            case Change.BITS:
                drawn = _integers(own, 0, 2, generator)
            case Change.SHIFTED:
                drawn = own + _integers(own.view(-1)[:1], 1, self.table - high, generator)
            case Change.SUBSET:
                drawn = _subset(own, 0, self.table - 1, generator)
            case _:
                drawn = _by_rows(own, change, low, high, generator)
        return drawn.to(own.dtype).view(own.shape)


def fixed_of(several: Sequence[Sequence[Tensor]], tables: Sequence[int]) -> list[Fixed | None]:
    """Return the integer and boolean tensors that are equal in all draws in `several`, as `Fixed`.

    The item is None for other tensors. `tables` are the lengths of the tables that each tensor
    indexes.
    """
    import torch

    found: list[Fixed | None] = []
    for tensors, table in zip(zip(*several, strict=True), tables, strict=True):
        first = tensors[0]
        whole = not (first.is_floating_point() or first.is_complex()) and first.numel() > 0
        alike = whole and all(torch.equal(first, other) for other in tensors[1:])
        found.append(Fixed(first, table) if alike else None)
    return found


def accepted_changes(fixed: Fixed, accepts: Accepts, seed: int) -> tuple[Change, ...]:
    """Return the changes of `fixed` that the reference accepts.

    They are those of the first set in `Fixed.candidates` with an accepted change, and those of
    `Fixed.empties`. A change is accepted if the reference accepts all TRIALS samples of it.
    """
    strongest = (
        tuple(c for c in cs if _is_accepted(fixed, c, accepts, seed)) for cs in fixed.candidates()
    )
    found = next(filter(None, strongest), ())
    further = (
        c for c in fixed.empties() if c not in found and _is_accepted(fixed, c, accepts, seed)
    )
    return (*found, *further)


def _is_accepted(fixed: Fixed, change: Change, accepts: Accepts, seed: int) -> bool:
    """Draw TRIALS samples of a change; return True if some differ and the reference accepts all."""
    import torch

    generator = seeded([fixed.own], seed)
    samples = [fixed.changed(change, generator) for _ in range(TRIALS)]
    differs = any(not torch.equal(sample, fixed.own) for sample in samples)
    return differs and all(accepts(sample) for sample in samples)


def _by_rows(own: Tensor, change: Change, low: int, high: int, generator: Generator) -> Tensor:
    """Apply a change to each row of `own`; descending rows are reversed before and after."""
    rows = _rows(own)
    if change is Change.SHUFFLED:
        order = randn(rows, generator).argsort(-1)
        return rows.gather(1, order).view(own.shape)
    falls = not _ascends(rows)
    rows = rows.flip(-1) if falls else rows
    if change is Change.SPACED:
        changed = _spaced(rows, generator)
    elif change is Change.RUNS:
        changed = _runs(rows, generator)
    else:
        changed = _repeated(rows, low, high, generator)
    return (changed.flip(-1) if falls else changed).view(own.shape)


def _spaced(rows: Tensor, generator: Generator) -> Tensor:
    """Draw for each row distinct ascending integers with the row's first and last number."""
    import torch

    def spaced(row: Tensor) -> Tensor:
        first, last, count = int(row[0]), int(row[-1]), row.numel()
        between = torch.randperm(last - first - 1, generator=generator, device=row.device)
        inner = between[: count - 2].sort().values + first + 1
        return torch.cat([row[:1], inner.to(row.dtype), row[-1:]])

    return _change_rows(rows, spaced)


def _subset(own: Tensor, low: int, high: int, generator: Generator) -> Tensor:
    """Draw for each row of `own` distinct integers from `low` to `high`, sorted like the row."""
    import torch

    rows = _rows(own)
    falls = not _ascends(rows)

    def subset(row: Tensor) -> Tensor:
        drawn = torch.randperm(high - low + 1, generator=generator, device=row.device)
        return (drawn[: row.numel()] + low).sort(descending=falls).values

    return _change_rows(rows, subset)


def _runs(rows: Tensor, generator: Generator) -> Tensor:
    """Draw for each row the same sorted values with other numbers of repetitions."""
    import torch

    def runs(row: Tensor) -> Tensor:
        values, count = row.unique(), row.numel()
        cuts = torch.randperm(count - 1, generator=generator, device=row.device)
        number = torch.zeros(count, dtype=torch.int64, device=row.device)
        number[cuts[: values.numel() - 1] + 1] = 1
        return values[number.cumsum(0)]

    return _change_rows(rows, runs)


def _repeated(rows: Tensor, low: int, high: int, generator: Generator) -> Tensor:
    """Draw for each row ascending integers with repetitions and the row's first and last number."""
    drawn = _integers(rows, low, high + 1, generator).to(rows.dtype)
    drawn = drawn.maximum(rows[:, :1]).minimum(rows[:, -1:])
    drawn[:, :1], drawn[:, -1:] = rows[:, :1], rows[:, -1:]
    return _change_rows(drawn.sort(-1).values, partial(_without_one, generator=generator))


def _without_one(row: Tensor, generator: Generator) -> Tensor:
    """Replace one value of a sorted row by the value before it, so that two elements are equal."""
    import torch

    inner = row[(row > row[0]) & (row < row[-1])].unique()
    if not inner.numel():
        return row
    value = inner[_integers(inner[:1], 0, inner.numel(), generator)]
    return torch.where(row == value, row[row < value].max(), row)


def _prefixes(own: Tensor, generator: Generator) -> Tensor:
    """Return rows of ones followed by zeros; the number of ones is random, at least 1."""
    import torch

    rows = _rows(own)
    width = rows.shape[1]
    lengths = _integers(rows[:, :1], 1, width + 1, generator)
    return (torch.arange(width, device=own.device) < lengths).view(own.shape)


def _emptied(own: Tensor, generator: Generator) -> Tensor:
    """Set a random share of the numbers to zero: at least one, but not all of them."""
    import torch

    noise = torch.rand(tuple(own.shape), generator=generator, device=own.device).view(-1)
    zero = noise < EMPTIED
    zero[noise.argmin()], zero[noise.argmax()] = True, False
    return own.masked_fill(zero.view(own.shape), 0)


def _other_mask(own: Tensor, generator: Generator) -> Tensor:
    """Flip a random share of a boolean mask.

    A row that has a True keeps at least one, and so does a row that has a False.
    """
    import torch

    rows = _rows(own)
    noise = torch.rand(tuple(rows.shape), generator=generator, device=own.device)
    changed = rows ^ (noise < FLIPPED)
    for value in (True, False):
        had = rows == value
        place = torch.where(had, noise, torch.full_like(noise, -1.0)).argmax(-1, keepdim=True)
        lost = had.any(-1, keepdim=True) & ~(changed == value).any(-1, keepdim=True)
        here = torch.zeros_like(changed).scatter(1, place, lost)
        changed = torch.where(here, torch.full_like(changed, value), changed)
    return changed.view(own.shape)


def _integers(like: Tensor, low: int, high: int, generator: Generator) -> Tensor:
    """Return random int64 in [low, high) with the shape of `like`."""
    import torch

    shape = tuple(like.shape)
    return torch.randint(low, high, shape, generator=generator, device=like.device)


def _rows(tensor: Tensor) -> Tensor:
    """View the tensor as [rows, last axis]; as one row if the last axis has length 1."""
    if tensor.dim() and tensor.shape[-1] > 1:
        return tensor.reshape(-1, tensor.shape[-1])
    return tensor.reshape(1, -1)


def _ascends(rows: Tensor) -> bool:
    return bool((rows.diff(dim=-1) >= 0).all())


def _distinct(rows: Tensor) -> bool:
    ordered = rows.sort(-1).values
    return bool((ordered.diff(dim=-1) != 0).all())


def _change_rows(rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `change` to every row.

    If many rows are equal, reuse the results of the first MOST_ROWS.
    """
    import torch

    few = rows
    if rows.shape[0] > MOST_ROWS and bool((rows == rows[:1]).all()):
        few = rows[:MOST_ROWS]
    changed = torch.stack([change(row) for row in few])
    return changed[torch.arange(rows.shape[0], device=rows.device) % few.shape[0]]
