"""One tensor of a kind: what `inputs.derive` puts in the place of a task's own.

Values differ from row to row where a kernel might mix rows up, a row being all elements along the
last axis. What is normalised together may be more than a row (a group of channels, a sample), so
that half of the leading blocks are of one level each, and the others of a level for each row.
Levels are dealt out, not drawn: each comes up wherever there are rows enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

EXPONENTS = (-8, 8, 0, -4, 4)
TINY_EXPONENTS = (-14, -22, -30)
"""Fourth powers of the last still are fp32's usual numbers."""
BRINKS = 3
TAILS = ((5, 1), (-5, 1), (0, 5), (8, 1), (-8, 1), (0, 3), (3, 1), (-3, 1), (0, 8))
"""Mean and deviation of moderate tails; of the first three each is tried on slow tasks as well."""
SIGNS = (-1, 1)
FLAT_LEVELS = 3
"""Zeros, one value throughout, and values as usual."""
FEW_IN_A_LINE = 8
LIKELY_MARKS = 4
ROW_STEPS = 4
"""At most, in which a row has one number throughout."""
STRETCH = 1 << 22
"""Elements that are gone through at a time where steps on the way need memory of their own."""
SHORTEST_AXIS = 8
"""An axis of fewer has its extremes at the ends often enough."""
LONGEST = 1 << 20
"""Elements of a tensor whose corners are as large as they may be."""
EXTREME_SIZE, FAR_EXTREME_SIZE = 8.0, 200.0
"""Of extremes: the largest of a million normal numbers is about 5, and exp of 89 overflows."""


@dataclass(frozen=True)
class LineView:
    """How to see a tensor as lines: seen in `shape`, they go over `dims`."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def places(self) -> int:
        """Elements of a line."""
        return math.prod(self.shape[dim] for dim in self.dims)

    @property
    def steps(self) -> int:
        """Draws in which one element of each line can stand in every place."""
        lines = math.prod(self.shape) // max(1, self.places)
        return math.ceil(self.places / max(1, lines))

    def lines(self, tensor: Tensor) -> Tensor:
        """[lines, places]"""
        last = tuple(range(-len(self.dims), 0))
        return tensor.reshape(self.shape).movedim(self.dims, last).reshape(-1, self.places)

    def back(self, lines: Tensor, like: Tensor) -> Tensor:
        """What `lines` came from."""
        others = [side for dim, side in enumerate(self.shape) if dim not in self.dims]
        wide = lines.reshape([*others, *(self.shape[dim] for dim in self.dims)])
        last = tuple(range(-len(self.dims), 0))
        return wide.movedim(last, self.dims).reshape(like.shape)


def axes(tensor: Tensor) -> list[LineView]:
    """Lines along each long axis, the last one first; along the last where none is long."""
    shape = tuple(tensor.shape) or (1,)
    long = [dim for dim, size in enumerate(shape) if size >= SHORTEST_AXIS]
    return [LineView(shape, (dim,)) for dim in reversed(long or [len(shape) - 1])]


def mixed(normal: Tensor, generator: Generator) -> Tensor:
    """Rows, and whole blocks, scaled by powers of two."""
    return normal * _dealt(EXPONENTS, normal, generator).exp2()


def tiny(normal: Tensor, generator: Generator) -> Tensor:
    """Rows, and whole blocks, next to nothing, and as they are where there are several."""
    return normal * _dealt((*TINY_EXPONENTS, 0), normal, generator).exp2()


def brink(tensor: Tensor, edges: Sequence[float], case: int, generator: Generator) -> Tensor:
    """Zero, below an edge or above it throughout, but for one number of each row, which is at it.

    There are BRINKS cases for each edge.
    """
    import torch

    edge = edges[case % len(edges)]
    around = (0.0, edge - 1, edge + 1)[case // len(edges) % BRINKS]
    width = tensor.shape[-1] if tensor.dim() else 1
    first = _first_of_rows(tensor)
    place = (torch.special.ndtr(randn(first, generator)) * width).long()
    places = torch.arange(width, device=tensor.device).view(tensor.shape[-1:])
    return torch.where(places == place, edge, around).to(tensor.dtype)


def tails(
    own: Sequence[Tensor], free: Sequence[bool], step: int, generator: Generator
) -> list[Tensor]:
    """The tensors of `own` with a shift or a deviation of TAILS, by `turn`.

    A shift changes one tensor, since the difference of two shifted tensors would lose it; a
    deviation changes all. Tensors that are not `free` keep to a domain and stay as they are, unless
    all floating ones do.
    """
    real = [number for number, x in enumerate(own) if x.is_floating_point()]
    real = [number for number in real if free[number]] or real
    mean, deviation = TAILS[step % len(TAILS)]
    chosen = real[step // len(SIGNS) % len(real) :][:1] if mean else real
    drawn = list(own)
    for number in chosen:
        normal = randn(own[number], generator)
        drawn[number] = (normal * deviation + mean).to(own[number].dtype)
    return drawn


def missing(normal: Tensor, generator: Generator) -> Tensor:
    """Rows, and whole blocks, with one NaN, with some, with nothing else, and without."""
    import torch

    level = _dealt(range(4), normal, generator)
    one = planted(normal, (math.nan,), generator).isnan()
    some = randn(normal, generator) > 0
    lost = (level == 3) | ((level == 2) & some) | ((level == 0) & one)
    return torch.where(lost, torch.full_like(normal, math.nan), normal)


def levels(normal: Tensor, offset: float, generator: Generator) -> Tensor:
    """Rows, and whole blocks, around plus and minus `offset`."""
    return normal + offset * _dealt(SIGNS, normal, generator)


def large(normal: Tensor, size: float, generator: Generator) -> Tensor:
    """Rows, and whole blocks, all below -`size`, of that size, and as they are."""
    import torch

    level = _dealt(range(3), normal, generator)
    below = -size * (1 + normal.abs())
    return torch.where(level == 0, below, torch.where(level == 1, size * normal, normal))


def planted(normal: Tensor, values: Sequence[float], generator: Generator) -> Tensor:
    """One element of each row, by turns and whole blocks, is one of `values`; zero is for none."""
    import torch

    level = _dealt(range(len(values)), normal, generator).long()
    width = normal.shape[-1] if normal.dim() else 1
    places = torch.arange(width, device=normal.device).view(normal.shape[-1:])
    place = (torch.special.ndtr(randn(_first_of_rows(normal), generator)) * width).long()
    value = torch.tensor(list(values), dtype=normal.dtype, device=normal.device)[level]
    return torch.where((places == place) & (value != 0), value, normal)


def flat(normal: Tensor, generator: Generator) -> Tensor:
    """Rows, and whole blocks, of zeros and of one value, a power of two; the others as they are.

    A tensor of one row is zero, so that a reference that divides by what then vanishes is not
    finite on every draw of this kind, and never judged by it.
    """
    import torch

    level = _dealt(range(FLAT_LEVELS), normal, generator)
    like = _first_of_rows(normal)
    value = randn(like, generator).round().clamp(-2, 2).exp2() * randn(like, generator).sign()
    return torch.where(level == 0, torch.zeros_like(normal), torch.where(level == 1, value, normal))


def edges(normal: Tensor, extreme_size: float) -> Tensor:
    """Extremes at both ends of every long axis, from line to line the other way round.

    A reduction that leaves out the first or last element of a line then errs for certain.
    """
    import torch

    signs = torch.ones_like(normal)
    for axis, size in enumerate(normal.shape):
        line = 1 - 2 * (torch.arange(size, device=normal.device) % 2)
        signs = signs * line.view([-1 if other == axis else 1 for other in range(normal.dim())])
    for axis, size in enumerate(normal.shape):
        if size >= SHORTEST_AXIS:
            push = extreme_size * signs.select(axis, 0)
            normal.select(axis, 0).sub_(push)
            normal.select(axis, -1).add_(push)
    return normal


def corners(normal: Tensor, sign: int) -> Tensor:
    """The first and the last element of the tensor, and of each block along its leading axes, as
    large as the root of how many there are in the block.

    So each counts in a sum over the block, or in one of squares, whatever its length. In tensors of
    more than LONGEST elements it is less, or a plain sum of squares in fp32 would stand still.
    """
    extreme_size = sign * min(1.0, (LONGEST / max(1, normal.numel())) ** 0.5)
    for leading in reversed(range(max(1, normal.dim() - 1))):
        blocks = normal.view(math.prod(normal.shape[:leading]), -1)
        if blocks.numel():
            blocks[:, 0] = blocks[:, -1] = extreme_size * blocks.shape[1] ** 0.5
    return normal


def moving(
    normal: Tensor, extreme_size: float, line_view: LineView, step: int, order: Generator
) -> Tensor:
    """The largest and the least of each line where they have not stood before.

    Over ceil(places / lines) turns with the same `order` both stand in every place, and over twice
    as many all else in the line is once below zero and once above.
    """
    lines = line_view.lines(normal)
    at, opposite, sign = (column[:, None] for column in _places_of_step(lines, step, order))
    lines = sign * lines.abs()
    high = lines.gather(1, at).abs() + extreme_size
    lines = lines.scatter(1, opposite, -high).scatter(1, at, high)
    return line_view.back(lines, normal)


def single(tensor: Tensor, line_view: LineView, step: int, order: Generator) -> Tensor:
    """Lines of booleans in which one is set, and lines in which all are but one."""
    import torch

    lines = line_view.lines(tensor)
    at, _, sign = (column[:, None] for column in _places_of_step(lines, step, order))
    alone = torch.zeros_like(lines).scatter(1, at, torch.ones_like(lines[:, :1]))
    return line_view.back(alone ^ (sign > 0), tensor)


def sorted_lines(normal: Tensor, line_view: LineView, generator: Generator) -> Tensor:
    """Lines that rise and lines that fall: each element is the largest so far, or the least."""
    import torch

    lines = line_view.lines(normal).sort(-1).values
    falls = _order(lines.shape[0], lines, generator)[:, None] % 2 == 0
    return line_view.back(torch.where(falls, lines.flip(-1), lines), normal)


def every(tensor: Tensor, bounds: tuple[int, int], step: int, order: Generator) -> Tensor:
    """Each of the numbers from the least to the largest in turn; of negative ones the least only,
    which may be a mark for what does not count. Then, in further turns, one number throughout a
    row: the mark may be any."""
    import torch

    low, high = bounds
    first = max(low, 0)
    values = torch.arange(first, max(high + 1, first), dtype=tensor.dtype, device=tensor.device)
    if low < 0:
        values = torch.cat([values, values.new_tensor([low])])
    plain, alike = steps_of_every(tensor, values.numel())
    whole = alike > 0 and step >= plain
    like = _first_of_rows(tensor) if whole else tensor
    begun = (step - plain if whole else step) * like.numel()
    number = torch.arange(like.numel(), device=tensor.device) + begun
    dealing = _order(values.numel(), tensor, order)
    if whole:  # what marks padding lies at either end most often: not left to chance
        likely = (dealing < LIKELY_MARKS) | (dealing >= values.numel() - LIKELY_MARKS)
        dealing = torch.cat([dealing[likely], dealing[~likely]])
    dealt = dealing[number % values.numel()]
    return values[dealt].view(like.shape).expand(tensor.shape)


def steps_of_every(tensor: Tensor, values: int) -> tuple[int, int]:
    """Turns in which each of so many values comes up, and further ones for whole rows."""
    plain = math.ceil(values / max(1, tensor.numel()))
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return plain, 0
    return plain, min(math.ceil(values * tensor.shape[-1] / max(1, tensor.numel())), ROW_STEPS)


def _places_of_step(lines: Tensor, step: int, order: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """For each line a place, another one, and the sign of what stands elsewhere."""
    import torch

    count, places = lines.shape
    number = torch.arange(count, device=lines.device) + step * count
    dealt = _order(places, lines, order)
    sign = 1 - 2 * ((number % places + number // places) % 2)
    return dealt[number % places], dealt[(number + places // 2) % places], sign


def few(normal: Tensor, generator: Generator) -> Tensor:
    """Zeros but for some FEW_IN_A_LINE along the last axis: 1 + m / 2^17, m odd, 2^8 < m < 2^9.

    A bfloat16 number takes the 1 and a second one eight bits of m, which has nine. Sums of up to
    127 such numbers, with factors of one, are exact in fp32.
    """
    width = normal.shape[-1] if normal.dim() else 1
    others = uniform(normal) >= min(0.5, FEW_IN_A_LINE / max(width, 1))
    m = uniform(randn(normal, generator)).mul_(127).floor_().mul_(2).add_(257)
    return m.div_(2**17).add_(1).masked_fill_(others, 0)


def uniform(normal: Tensor) -> Tensor:
    """Normal numbers made uniform in [0, 1), where they lie."""
    import torch

    for part in normal.view(-1).split(STRETCH):
        part.copy_(torch.special.ndtr(part))
    return normal


def masked(tensor: Tensor, generator: Generator) -> Tensor:
    """Rows, and whole blocks, of a boolean tensor all set or all clear; the others as they are."""
    level = _dealt(range(3), tensor, generator)
    return (tensor & (level != 0)) | (level == 1)


def extreme(tensor: Tensor, bounds: tuple[int, int], generator: Generator) -> Tensor:
    """A third each of the least, the largest and what was there; the first one the largest and the
    last one the least, so that of several tensors both are at their ends at once."""
    import torch

    third = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    third.view(-1)[:1], third.view(-1)[-1:] = 1 / 2, 0
    low, high = (torch.full_like(tensor, bound) for bound in bounds)
    return torch.where(third < 1 / 3, low, torch.where(third < 2 / 3, high, tensor))


def balanced(tensor: Tensor, generator: Generator) -> Tensor:
    """+1 and -1 in equal numbers along the last axis, in an order drawn from the generator."""
    width = tensor.shape[-1] if tensor.dim() else 1
    return (_order(width, tensor, generator) % 2 * 2 - 1).to(tensor.dtype)


def dealt(values: Sequence[float], tensor: Tensor, generator: Generator) -> Tensor:
    """Each of `values` as often as the others; the first where there is one element only."""
    import torch

    table = torch.tensor(list(values), device=tensor.device)
    return table[_order(tensor.numel(), tensor, generator) % len(values)].view(tensor.shape)


def strewn(
    tensor: Tensor, values: Sequence[float], generator: Generator, share: float = 1 / 4
) -> Tensor:
    """A share of the elements are of `values`, the others as they are."""
    import torch

    these = dealt(values, tensor, generator).to(tensor.dtype)
    chosen = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    return torch.where(chosen < share, these, tensor)


def randn(tensor: Tensor, generator: Generator) -> Tensor:
    """Standard normal fp32 (fp64 for fp64) of the tensor's shape."""
    import torch

    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    shape = tuple(tensor.shape)
    return torch.randn(shape, generator=generator, dtype=dtype, device=tensor.device)


def _dealt(values: Sequence[float], tensor: Tensor, generator: Generator) -> Tensor:
    """One of `values` for every row, as [..., 1]; the first of them where there is one row only."""
    import torch

    rows = _first_of_rows(tensor)
    ranks = _order(rows.numel(), tensor, generator).view(rows.shape)
    blocks = next((axis for axis, size in enumerate(rows.shape) if size > 1), 0)
    if any(size > 1 for size in rows.shape[blocks + 1 :]):
        shape = [size if axis == blocks else 1 for axis, size in enumerate(rows.shape)]
        order = _order(rows.shape[blocks], tensor, generator).view(shape)
        ranks = torch.where(order % 2 == 0, order // 2, ranks)
    table = torch.tensor(list(values), device=tensor.device, dtype=torch.float32)
    return table[ranks % len(values)]


def _first_of_rows(tensor: Tensor) -> Tensor:
    return tensor[..., :1] if tensor.dim() else tensor


def _order(count: int, tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    return torch.randperm(count, generator=generator, device=tensor.device)


def seeded(tensors: Sequence[Tensor], seed: int) -> Generator:
    """Where the tensors lie, which are drawn anew; on the CPU where there are none."""
    import torch

    device = tensors[0].device if tensors else torch.device("cpu")
    return torch.Generator(device=device).manual_seed(seed)
