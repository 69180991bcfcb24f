"""Find operators of the reference that choose among elements, and follow their indices to outputs.

A line is the elements among which an operator chooses once. A maximum, a sort or a pooling shows
only the chosen element of each line. To test the other elements, extremes must be drawn at their
places, so the lines must be known. An index may name any of several equal elements, so the rule for
indices must know the elements from which each index was chosen.

Covered: indices that reach the output unchanged, through any views, slices and integer dtypes. Not
covered: results computed from an index (a sum with it, a one-hot row).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.nan_tests import NanTests

if TYPE_CHECKING:
    from torch import Tensor, dtype

_BY_DIM = """
max min amax amin aminmax argmax argmin any all topk sort kthvalue median nanmedian mode cummax
cummin
"""
BY_DIM = frozenset(_BY_DIM.split())
"""Operators with an argument `dim`; without it they choose among all elements."""
POOLS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}
"""Poolings with the number of last axes that they span."""
WITHOUT_INDEX = frozenset(("any", "all", "amax", "amin", "aminmax", "linalg_vector_norm"))
"""Operators that return the chosen value but not its index."""
SHIFTED = frozenset(("_softmax", "_log_softmax", "logsumexp"))
"""Operators that subtract a maximum first, so that nothing overflows."""
FIRST = frozenset(("argmax", "argmin", "max", "min"))
"""Operators whose documentation promises the first of equal elements."""
DISTINCT = ("topk", "sort")
"""Operators whose indices in one line are distinct."""
BOUNDED = (*POOLS, "cummax", "cummin")
"""Operators that choose each element of their result from a part of the line."""
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
COMPARING = frozenset(
    ("gt", "ge", "lt", "le", "eq", "ne", "clamp", "clamp_min", "clamp_max", "hardtanh", "threshold",
     "hardshrink", "softshrink", "histc")
)  # fmt: skip
"""Operators whose formula changes at a threshold."""
JUMPING = frozenset(("gt", "ge", "lt", "le", "eq", "ne", "threshold", "hardshrink"))
"""Comparing operators whose result jumps at the threshold."""
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
"""Operators of a backward pass whose result jumps where the forward has a kink. Value: positions of
the operands that decide, and thresholds that the operator does not take as arguments."""
SCALING = frozenset(("mul", "div"))
"""Operators that scale by a number, for example before a rounding."""
SEARCHING = {"bucketize": 1, "searchsorted": 0}
"""Operators with the position of the boundaries among the arguments."""
MOST_BOUNDARIES = 64
"""Largest number of boundaries that are used as thresholds."""
MOST_SCALES, FEW_SIZES = 1 << 12, 2
"""Largest number of elements of a tensor of scales, and of distinct absolute values in it."""
LEAST_SCALE, MOST_SCALE = 2.0**-10, 2.0**10
"""Range of the scales that are used."""
ROUNDED = frozenset(
    ("round", "floor", "ceil", "trunc", "frac", "floor_divide", "remainder", "fmod")
)
"""Operators that jump at whole numbers, or half way between them."""
MOST_DECIDING = 1 << 22
"""Largest number of elements of an operand of a decision that is copied for comparison. A decision
by a larger one counts as uncertain."""
FINEST, LARGEST_ROUND = 2.0**-4, 2.0**8
"""Thresholds that are used are multiples of the first, up to the second in size: every precision
represents them."""
COPIES = ("clone", "_to_copy", "_unsafe_view", "flip")
"""Operators that copy elements unchanged, besides views."""


@dataclass(frozen=True)
class Selection:
    """One executed operator that chose among elements."""

    name: str
    operand: Tensor
    dims: tuple[int, ...]
    """Axes along which it chose. The elements along all of them form a line."""
    function: Any
    other_args: tuple[Any, ...]
    """Arguments after the first."""
    kwargs: dict[str, Any]

    @property
    def places(self) -> int:
        """Number of elements of a line."""
        return math.prod(self.operand.shape[dim] for dim in self.dims)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.operand.numel() // max(1, self.places)

    @property
    def indexed(self) -> bool:
        """True if the operator returns the index of the chosen element."""
        return self.name not in WITHOUT_INDEX and self.name not in SHIFTED

    @property
    def first_wins(self) -> bool:
        """True if the operator guarantees the index of the first of equal elements."""
        return self.name in FIRST

    @property
    def stable(self) -> bool:
        """True if the operator guarantees the order of equal elements."""
        return self.name == "sort" and "stable" in (self.function._overloadname or "")


@dataclass(frozen=True)
class TracedIndices:
    """Output tensor whose elements are indices of one selection."""

    selection: int
    """Number of the selection, in the order of execution."""
    positions: Tensor
    """Position of each output element in the flattened indices of the selection."""
    shape: tuple[int, ...]
    """Shape of the selection's own indices."""


@dataclass(frozen=True)
class ReferenceTrace:
    """Facts from one run of the reference."""

    outputs: list[Tensor]
    selections: list[Selection]
    traced: list[TracedIndices | None]
    """Traced indices for each output, None if it has none."""
    names: frozenset[str] = frozenset()
    """Names of all operators that ran."""
    decided: Sequence[Tensor] = ()
    """Copies of the operands of operators that round or produce integers or booleans."""
    thresholds: tuple[float, ...] = ()
    """Round numbers that floating tensors were compared with."""
    casts: bool = False
    """True if floating numbers were cast to integers."""
    defined: bool = True
    """True if all casts were within the integer range; casts of NaN or larger numbers depend on the
    machine."""
    edges: tuple[float, ...] = ()
    """Thresholds at which the result jumps."""
    scales: tuple[float, ...] = ()
    """Whole numbers and powers of two by which a tensor was scaled."""
    handles_nan: bool = False
    """True if the reference tests its inputs for NaN (`nan_tests`)."""
    handles_infinity: bool = False
    """True if it tests them for infinities too."""
    kinks: Sequence[Tensor] = ()
    """Operands that decide at a kink in a backward pass (`KINKS`)."""

    @property
    def rounds(self) -> bool:
        """True if a tensor was rounded to whole numbers."""
        return self.casts or bool(ROUNDED & {name.rstrip("_") for name in self.names})


def trace_reference(run: Callable[[], list[Tensor]]) -> ReferenceTrace:
    """Run the reference; record its selections, comparisons, roundings and scalings."""

    selections: list[Selection] = []
    names: set[str] = set()
    decided: list[Tensor] = []
    kinks: list[Tensor] = []
    thresholds: set[float] = set()
    casts: list[bool] = []
    edges: set[float] = set()
    scales: set[float] = set()
    nan_tests = NanTests()
    known_indices: dict[int, tuple[Tensor, TracedIndices]] = {}
    """Indices by id(tensor); the tensor is kept, so that its id is not reused."""

    def record(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        names.add(_name(function, args))
        chosen = selection(function, args, kwargs)
        result = function(*args, **kwargs)
        nan_tests.see(function, args, result)
        compared = _thresholds(function, args, kwargs)
        thresholds.update(compared)
        thresholds.update(_boundaries(function, args))
        scales.update(_scales(function, args))
        edges.update(compared if _is_one_of(JUMPING, function) else ())
        if _casts(function, args, result):
            casts.append(_holds(result.dtype, args[0]))
        if _decides(function, result):
            decided.extend(_kept(args))
        if (kink := KINKS.get(_plain_name(function))) is not None:
            kinks.extend(_kept([args[k] for k in kink[0] if k < len(args)]))
        if chosen is not None:
            index = index_of(chosen.name, result)
            if index is not None:
                known_indices[id(index)] = index, _own_indices(len(selections), index)
            selections.append(chosen)
        elif args and id(args[0]) in known_indices:
            if function._schema.is_mutable:
                del known_indices[id(args[0])]
            else:
                _propagate(known_indices, function, args, kwargs, result)
        return result

    with intercept_operators(record):
        outputs = run()
    traced = [
        known_indices[id(output)][1]
        if id(output) in known_indices and not is_inexact(output)
        else None
        for output in outputs
    ]
    return ReferenceTrace(
        outputs,
        selections,
        traced,
        frozenset(names),
        decided,
        tuple(sorted(thresholds)),
        bool(casts),
        all(casts),
        tuple(sorted(edges)),
        tuple(sorted(scales)),
        nan_tests.nan,
        nan_tests.infinity,
        kinks,
    )


def _is_one_of(names: Collection[str], function: Any) -> bool:
    return _plain_name(function) in names


def _plain_name(function: Any) -> str:
    """Return the operator's name without the mark of an operator in place."""
    return str(function.overloadpacket.__name__).rstrip("_")


def _kept(values: Sequence[Any]) -> list[Tensor]:
    """Return copies of the floating tensors in `values`; an empty tensor in place of a large
    one."""
    import torch

    reals = [x for x in values if isinstance(x, torch.Tensor) and is_inexact(x)]
    return [x.detach().clone() if x.numel() <= MOST_DECIDING else x[:0] for x in reals]


def _name(function: Any, args: Sequence[Any]) -> str:
    name = str(function.overloadpacket.__name__)
    return f"complex {name}" if args and _is_complex(args[0]) else name


def _is_complex(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_complex()


def _thresholds(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[float]:
    """Return the numbers that an operator compares with, if every precision represents them."""
    kink = KINKS.get(_plain_name(function))
    if kink is None and not _is_one_of(COMPARING, function):
        return []
    numbers = [x for x in (*args, *kwargs.values()) if isinstance(x, int | float)]
    numbers += kink[1] if kink is not None else ()
    return [float(x) for x in numbers if abs(x) <= LARGEST_ROUND and x / FINEST == x // FINEST]


def _boundaries(function: Any, args: Sequence[Any]) -> list[float]:
    """Return some of the boundaries of a bucket search."""
    at = SEARCHING.get(function.overloadpacket.__name__)
    if at is None or not args[at].is_floating_point():
        return []
    values = args[at].detach().reshape(-1)
    step = -(-values.numel() // MOST_BOUNDARIES)
    return [float(value) for value in values[:: max(1, step)] if math.isfinite(value)]


def _scales(function: Any, args: Sequence[Any]) -> list[float]:
    if not _is_one_of(SCALING, function):
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
    """Return the distinct absolute values of a tensor if it may hold scales, else [].

    It may if there are at most FEW_SIZES of them, all finite and above zero.
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
    """Return True if the operator casts floating numbers to integers."""
    import torch

    if function.overloadpacket.__name__ != "_to_copy" or not args[0].is_floating_point():
        return False
    return not is_inexact(result) and result.dtype is not torch.bool


def _holds(dtype: dtype, tensor: Tensor) -> bool:
    """Return True if all numbers, truncated, are in the range of the integer dtype."""
    import torch

    if not tensor.numel():
        return True
    least, most = (float(x) for x in tensor.aminmax())
    return torch.iinfo(dtype).min - 1 < least <= most < torch.iinfo(dtype).max + 1


def _decides(function: Any, result: Any) -> bool:
    import torch

    results = result if isinstance(result, tuple | list) else (result,)
    whole = any(isinstance(x, torch.Tensor) and not is_inexact(x) for x in results)
    return whole or _plain_name(function) in ROUNDINGS


def selection(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Selection | None:
    """Return the selection that an operator call makes, None if it chooses nothing."""
    import torch

    name = function.overloadpacket.__name__
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].dim():
        return None
    operand, count = args[0], args[0].dim()
    if name in POOLS:
        dims: Sequence[int] = range(count - POOLS[name], count)
    elif name in BY_DIM or name in SHIFTED or name == "linalg_vector_norm":
        dims = _dims(function, args, kwargs) or range(count)
    else:
        return None
    second = args[1] if len(args) > 1 else None
    elementwise = isinstance(second, torch.Tensor)
    if elementwise or (name == "linalg_vector_norm" and not math.isinf(second or 2)):
        return None
    around = tuple(sorted({dim % count for dim in dims}))
    before = operand.detach().clone() if function._schema.is_mutable else operand
    return Selection(name, before, around, function, tuple(args[1:]), kwargs)


def _dims(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
    """Return the axes of the argument `dim`; empty if the operator spans all axes."""
    for position, argument in enumerate(function._schema.arguments):
        if argument.name == "dim":
            given = args[position] if position < len(args) else argument.default_value
            given = kwargs.get("dim", given)
            return [given] if isinstance(given, int) else list(given or [])
    return []


def index_of(name: str, result: Any) -> Tensor | None:
    """Return the indices in the result of the operator `name`, None if it returns none."""
    if isinstance(result, tuple | list):
        return None if name == "aminmax" else result[1]
    return result if name in ("argmax", "argmin") else None


def _own_indices(number: int, index: Tensor) -> TracedIndices:
    import torch

    numbers = torch.arange(index.numel(), device=index.device).view(index.shape)
    return TracedIndices(number, numbers, tuple(index.shape))


def _propagate(
    known_indices: dict[int, tuple[Tensor, TracedIndices]],
    function: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    """Add the result of a view or copy of known indices to `known_indices`."""
    name = function.overloadpacket.__name__
    if not (function.is_view or name in COPIES):
        return
    traced = known_indices[id(args[0])][1]
    if name == "_to_copy":
        known_indices[id(result)] = result, traced
        return
    numbers = function(traced.positions, *args[1:], **kwargs)
    if isinstance(result, tuple | list):
        for part, of_part in zip(result, numbers, strict=True):
            known_indices[id(part)] = part, replace(traced, positions=of_part)
    else:
        known_indices[id(result)] = result, replace(traced, positions=numbers)
