"""Describe the wrong elements of a refused output, with a hint at the cause.

The description names the worst element as an index tuple, with its actual and expected value. It
gives the share of wrong elements, their places (a tail, one index, every second one), and how their
values relate to the right ones (sign, factor, offset, order). It is made only after the rule has
refused an output, and decides nothing. Its values belong to a draw whose seed the verdict reveals
and that is never used again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MOST = 4096
"""Largest number of wrong elements whose values are compared with the right ones."""
STRETCH = 1 << 20
"""Number of elements that are searched at a time."""
FEWEST = 64
"""Least number of wrong elements in a sample; if there are fewer, all elements are searched."""
ALIKE = 0.9
"""Least share of the wrong elements for which a relation (sign, factor) must be true."""
CLOSE = 1e-3
"""Relative difference up to which two numbers count as equal in a description."""
NEARLY_ALL = 0.99
"""Share of wrong elements from which on no pattern of positions is described."""
STEPS = (2, 4, 8, 16, 32)
"""Strides at which a pattern of wrong elements is sought: of vectors, unrolled loops, warps."""
HINTS = {
    "zero": "they are 0: look for missing work (a short grid or loop, an early return).",
    "sign": "their sign is flipped: look at the order of a subtraction, or a missing minus.",
    "factor": "they are off by one factor: look for a missing scale, or a mean over another count.",
    "offset": "they are off by one amount: look for a bias, an epsilon or a shift that is missing "
    "or added twice.",
    "order": "the values are right but in wrong places: check strides and transpositions.",
    "same": "they all have one value: look at an index that does not advance, or a broadcast.",
    "nan": "they are NaN or Inf: look for 0 / 0, log or sqrt of a negative number, exp without its "
    "maximum subtracted, or memory that was never written.",
    "tail": "only the end of a dimension is wrong: check the remainder of a loop whose length is "
    "not a multiple of the vector, tile or block.",
    "head": "only the beginning of a dimension is wrong: check the first iteration, padding and "
    "initial values.",
    "one": "only one index of a dimension is wrong: check its special cases (an edge, padding, its "
    "weight or bias).",
    "step": "the wrong elements have a regular stride: check one lane of a vector, or one copy in "
    "an unrolled loop.",
    "all": "nearly every element is wrong: compute one by hand, check the formula, each operand "
    "and the layout of the weights.",
    "some": "they are scattered: look for a race, a branch on values (large, tied, negative), or "
    "an edge.",
}
"""Hint at the likely cause by pattern: relations of the values first, then positions."""


@dataclass(frozen=True)
class Wrong:
    """Description of the wrong elements of one output, for the user."""

    note: str
    hint: str
    """Likely cause: one sentence that ends in a full stop."""


def describe(
    index: int, got: Tensor, expected: Tensor, wrong: Tensor, worst: int, *, integral: bool = False
) -> Wrong:
    """Describe the wrong elements of output number `index`.

    `got`, `expected` and `wrong` (booleans) have the shape of the output; `worst` is the position
    of the worst element in the flattened output. If no element is wrong, the output was rejected
    for its rms error, and the description says so.
    """
    shape = tuple(got.shape)
    total, count = wrong.numel(), int(wrong.count_nonzero())
    at = _unravel(worst, shape)
    given, right = got.reshape(-1)[worst].item(), expected.reshape(-1)[worst].item()
    place = (
        f"output {index}, element {_tuple(at)} of shape {_tuple(shape)}"
        if shape
        else (f"output {index}, a scalar")
    )
    said = f"{place}: got {_number(given, right)}, expected {_number(right, given)}"
    if not count:
        return Wrong(
            f"{said}; no element is far off, but together they are less precise than allowed",
            "the errors are small and everywhere: sum in fp32 or wider, in more than one "
            "accumulator, and avoid approximate functions.",
        )
    where, kind = _places(wrong, shape, count)
    relation = _relation(got.reshape(-1), expected.reshape(-1), wrong.reshape(-1))
    share = f"{_share(count, total)} of the elements are wrong ({count:,} of {total:,})"
    parts = [said, share + (f", {where}" if where else "")] if total > 1 else [said]
    if integral and relation in ("factor", "offset", "sign"):
        relation = ""  # these relations mean nothing for indices and booleans
    return Wrong("; ".join(parts), _hint(relation, kind if total > 1 else ""))


def _hint(relation: str, kind: str) -> str:
    """Return the hint for a relation of values and a pattern of positions (keys of HINTS or "")."""
    if relation and kind in ("tail", "head", "one", "step"):
        return f"{HINTS[relation].partition(':')[0]}; {HINTS[kind]}"
    return HINTS[relation or kind] if relation or kind else ""


def first(wrong: Tensor) -> int:
    """Return the flat index of the first wrong element."""
    offset = 0
    for part in wrong.reshape(-1).split(STRETCH):
        if bool(part.any()):
            return offset + int(part.byte().argmax())
        offset += part.numel()
    return 0


def _places(wrong: Tensor, shape: Sequence[int], count: int) -> tuple[str, str]:
    """Describe where the wrong elements are; return (description, key in HINTS)."""
    if count >= NEARLY_ALL * wrong.numel():
        return "", "all"
    found: list[tuple[float, str, str]] = []
    for dim, size in enumerate(shape):
        others = [d for d in range(len(shape)) if d != dim]
        hit = wrong.byte().amax(dim=others) if others else wrong  # quicker than `any`
        at = hit.nonzero().reshape(-1).tolist()
        if len(at) < size and (said := _along(at, size, dim)):
            found.append((len(at) / size, *said))
    if not found:
        return "scattered", "some"
    found.sort()
    words = "all " + " and ".join(words for _, words, _ in found[:2])
    return words if count > 1 else "", found[0][2]


def _along(at: Sequence[int], size: int, dim: int) -> tuple[str, str] | None:
    """Describe the pattern of the wrong indices `at` along dimension `dim` of length `size`.

    Returns (description, key in HINTS); None without a pattern.
    """
    first, last, many = at[0], at[-1], len(at)
    if many == 1:
        kind = "tail" if first == size - 1 else "one"
        return f"at index {first} of {size} in dimension {dim}", kind
    if last - first + 1 == many:
        if last == size - 1:
            return f"in the last {many} of {size} along dimension {dim}", "tail"
        if first == 0:
            return f"in the first {many} of {size} along dimension {dim}", "head"
        return f"at {first} to {last} of {size} along dimension {dim}", "one"
    for step in STEPS:
        if many >= 3 and many >= size // step and all(i % step == first % step for i in at):
            return f"at {first % step} modulo {step} along dimension {dim}", "step"
    return None


def _relation(got: Tensor, expected: Tensor, wrong: Tensor) -> str:
    """Return the key in HINTS for how the wrong values relate to the right ones; "" for no
    relation.
    """
    import torch

    at = _some(wrong)
    x, y = (_plain(tensor[at]) for tensor in (got, expected))
    if x is None or y is None:
        return ""
    if _mostly(~x.isfinite() & y.isfinite()):
        return "nan"
    keep = x.isfinite() & y.isfinite()
    x, y = x[keep], y[keep]
    if not x.numel():
        return ""
    if _mostly((x == 0) & (y != 0)):
        return "zero"
    near = y.abs() * CLOSE
    if _mostly(((x + y).abs() <= near) & (y != 0)):
        return "sign"
    if x.numel() < 3:
        return ""
    factor = (x / torch.where(y == 0, torch.nan, y)).nanmedian()
    if factor.isfinite() and factor != 0 and _mostly((x - factor * y).abs() <= near * factor.abs()):
        return "factor"
    offset = (x - y).median()
    if _mostly((x - y - offset).abs() <= CLOSE * offset.abs()):
        return "offset"
    if _mostly(x == x.median()):
        return "same"
    if at.numel() == int(wrong.count_nonzero()) and _mostly(
        (x.sort().values - y.sort().values).abs() <= near
    ):
        return "order"
    return ""


def _some(wrong: Tensor) -> Tensor:
    """Return flat indices of at most `MOST` wrong elements; large outputs are sampled."""
    step = max(1, wrong.numel() // (16 * MOST))
    at = wrong[::step].nonzero().reshape(-1) * step
    if step > 1 and at.numel() < FEWEST:
        at = wrong.nonzero().reshape(-1)
    return at[:: max(1, -(-at.numel() // MOST))]


def _plain(tensor: Tensor) -> Tensor | None:
    """Return the tensor in fp64; None for a complex or boolean tensor, which has no such
    relations.
    """
    import torch

    if tensor.is_complex() or tensor.dtype is torch.bool:
        return None
    return tensor.double()


def _mostly(holds: Tensor) -> bool:
    return bool(holds.double().mean() >= ALIKE)


def _unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))


def _tuple(numbers: Sequence[int]) -> str:
    return f"({', '.join(map(str, numbers))}{',' * (len(numbers) == 1)})"


def _number(value: complex | float | bool, other: complex | float | bool) -> str:
    """Format `value` with enough digits to distinguish it from `other`."""
    if isinstance(value, float) and isinstance(other, float) and math.isfinite(value):
        return next(
            (text for d in (4, 6, 9) if (text := f"{value:.{d}g}") != f"{other:.{d}g}"),
            f"{value:.17g}",
        )
    return f"{value}"


def _share(count: int, total: int) -> str:
    """Format count / total as a percentage; "0 %" and "100 %" appear only if exact."""
    percent = 100 * count / total
    if count == total:
        return "100 %"
    return f"{min(percent, 99.9):.3g} %" if percent >= 0.01 else "less than 0.01 %"
