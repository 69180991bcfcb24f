"""Recognize operators whose result jumps: comparisons, roundings, casts and kinks of a backward
pass.

Inputs near a jump test how a candidate decides. So this module collects the numbers with which the
reference compares, and by which it scales before a rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuagent.verify.tensors import is_inexact

if TYPE_CHECKING:
    from torch import Tensor, dtype

ROUNDINGS = (
    "round",
    "floor",
    "ceil",
    "trunc",
    "sign",
    "floor_divide",
    "remainder",
    "fmod",
    "histc",
)
"""Operators that round or compare although their result may be floating."""
COMPARING = frozenset(
    ("gt", "ge", "lt", "le", "eq", "ne", "clamp", "clamp_min", "clamp_max", "hardtanh", "threshold",
     "hardshrink", "softshrink", "histc")
)  # fmt: skip
"""Operators that compute another formula on each side of a threshold."""
JUMPING = frozenset(("gt", "ge", "lt", "le", "eq", "ne", "threshold", "hardshrink"))
"""Operators of COMPARING whose result jumps at the threshold."""
DIVIDING = frozenset(("remainder", "fmod", "floor_divide"))
"""Operators that jump at the multiples of a divisor.

Half of it counts as a threshold too, because angles are shifted by half a turn before they are
wrapped.
"""
KINKS: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "hardtanh_backward": ((1,), ()),
    "threshold_backward": ((1,), ()),
    "hardswish_backward": ((1,), (-3.0, 3.0)),
    "hardsigmoid_backward": ((1,), (-3.0, 3.0)),
    "softshrink_backward": ((1,), ()),
    "hardshrink_backward": ((1,), ()),
    "leaky_relu_backward": ((1,), (0.0,)),
    "_prelu_kernel_backward": ((1,), (0.0,)),
    "elu_backward": ((5,), (0.0,)),
    "smooth_l1_loss_backward": ((1, 2), ()),
    "huber_loss_backward": ((1, 2), ()),
    "sgn": ((0,), (0.0,)),
}
"""Operators of a backward pass whose result jumps where the forward has a kink (relu at 0).

The value is (indices of the operands that are compared, thresholds that are not arguments).
"""
SCALING = frozenset(("mul", "div"))
"""Operators that multiply or divide by a number, for example before a rounding."""
SEARCHING = {"bucketize": 1, "searchsorted": 0}
"""Operators that search in sorted boundaries, with the index of that argument."""
MOST_BOUNDARIES = 64
"""Largest number of a search's boundaries that are used as thresholds."""
MOST_SCALES, FEW_SIZES = 1 << 12, 2
"""Limits for a tensor of scales: largest number of elements, and of distinct absolute values."""
LEAST_SCALE, MOST_SCALE = 2.0**-10, 2.0**10
"""Range of the scale factors that are collected."""
ROUNDED = frozenset(
    ("round", "floor", "ceil", "trunc", "frac", "floor_divide", "remainder", "fmod")
)
"""Operators whose result jumps at whole numbers, or half way between them."""
MOST_DECIDING = 1 << 22
"""Largest number of elements of an operand that is copied, to compare it between precisions.

The decision by a larger operand counts as uncertain.
"""
FINEST, LARGEST_ROUND = 2.0**-4, 2.0**8
"""Thresholds are collected if they are multiples of FINEST up to LARGEST_ROUND.

Every precision represents these numbers exactly.
"""


class Decisions:
    """Observer of one run: it collects the decisions of its operators, thresholds and scale
    factors.
    """

    def __init__(self) -> None:
        self.decided: list[Tensor] = []
        """Copies of the operands of operators that round or produce integers or booleans."""
        self.kinks: list[Tensor] = []
        """Copies of the operands that are compared at a kink in a backward pass."""
        self.thresholds: set[float] = set()
        self.edges: set[float] = set()
        """Thresholds at which the result of an operator jumps."""
        self.scales: set[float] = set()
        self.casts: list[bool] = []
        """One boolean per cast to integers: True if all numbers were in the integers' range."""

    def see(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Update the collected data with one operator that ran."""
        name = _plain_name(function)
        compared = _thresholds(name, args, kwargs)
        self.thresholds.update(compared, _boundaries(function, args))
        self.scales.update(_scales(name, args))
        self.edges.update(compared if name in JUMPING else ())
        if _casts(function, args, result):
            self.casts.append(_holds(result.dtype, args[0]))
        if _decides(name, result):
            self.decided += _kept(args)
        if (kink := KINKS.get(name)) is not None:
            self.kinks += _kept([args[k] for k in kink[0] if k < len(args)])


def _thresholds(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[float]:
    """Return the numbers with which an operator compares; only those that every precision
    represents.
    """
    kink = KINKS.get(name)
    if kink is None and name not in COMPARING and name not in DIVIDING:
        return []
    numbers = [x for x in (*args, *kwargs.values()) if isinstance(x, int | float)]
    if name in DIVIDING:
        numbers = [side * x / 2 for x in numbers for side in (-2, -1, 1, 2)]
    numbers += kink[1] if kink is not None else ()
    return [float(x) for x in numbers if abs(x) <= LARGEST_ROUND and x / FINEST == x // FINEST]


def _boundaries(function: Any, args: Sequence[Any]) -> list[float]:
    """Return at most MOST_BOUNDARIES boundaries of a search (bucketize); [] for other operators."""
    at = SEARCHING.get(function.overloadpacket.__name__)
    if at is None or not args[at].is_floating_point():
        return []
    values = args[at].detach().reshape(-1)
    step = -(-values.numel() // MOST_BOUNDARIES)
    return [float(value) for value in values[:: max(1, step)] if math.isfinite(value)]


def _scales(name: str, args: Sequence[Any]) -> list[float]:
    """Return the factors by which an operator multiplies, if they are whole or a power of two."""
    if name not in SCALING:
        return []
    sizes = [abs(float(x)) for x in args if isinstance(x, int | float) and x]
    for tensor in args:
        sizes += _few_sizes(tensor)
    return [
        size
        for size in sizes
        if LEAST_SCALE <= size <= MOST_SCALE
        and size != 1
        and (size.is_integer() or math.frexp(size)[0] == 1 / 2)
    ]


def _few_sizes(value: Any) -> list[float]:
    """Return the distinct absolute values of a tensor that may contain scale factors; else [].

    It may if it is small and has at most FEW_SIZES of them, all finite and above zero.
    """
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return []
    if not 0 < value.numel() <= MOST_SCALES:
        return []
    sizes = value.detach().abs().unique()
    few = sizes.numel() <= FEW_SIZES and bool(sizes.isfinite().all()) and bool((sizes > 0).all())
    return [float(size) for size in sizes] if few else []


def _casts(function: Any, args: Sequence[Any], result: Any) -> bool:
    """Return True if the operator casts a floating tensor to integers."""
    import torch

    if function.overloadpacket.__name__ != "_to_copy" or not args[0].is_floating_point():
        return False
    return not is_inexact(result) and result.dtype is not torch.bool


def _holds(dtype: dtype, tensor: Tensor) -> bool:
    """Return True if all numbers, truncated, are in the range of the integer type `dtype`."""
    import torch

    if not tensor.numel():
        return True
    least, most = (float(x) for x in tensor.aminmax())
    return torch.iinfo(dtype).min - 1 < least <= most < torch.iinfo(dtype).max + 1


def _decides(name: str, result: Any) -> bool:
    """Return True if an operator rounds, or returns integers or booleans (a decision)."""
    import torch

    results = result if isinstance(result, tuple | list) else (result,)
    whole = any(isinstance(x, torch.Tensor) and not is_inexact(x) for x in results)
    return whole or name in ROUNDINGS


def _kept(values: Sequence[Any]) -> list[Tensor]:
    """Return copies of the floating tensors in `values`; an empty tensor for each large one."""
    import torch

    reals = [x for x in values if isinstance(x, torch.Tensor) and is_inexact(x)]
    return [x.detach().clone() if x.numel() <= MOST_DECIDING else x[:0] for x in reals]


def _plain_name(function: Any) -> str:
    """Return the operator's name without the trailing "_" of in-place operators."""
    return str(function.overloadpacket.__name__).rstrip("_")
