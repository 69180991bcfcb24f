"""Count K, the terms of the longest sum, from the operators in one forward of the reference.

Rounding errors of a sum of K terms grow like sqrt(K) (Ipsen and Zhou, arXiv 1906.10465), so both
gates of the strict rule have that factor. Operators that compute elementwise, are views or move
elements count as 1 term. Operators whose sums are not known here (a fused LSTM or attention, a
Fourier transform, a solver) count as the longest axis of their arguments. Too large a K loosens the
gates by its square root only, and errors of coarser arithmetic remain 90 times those of fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuagent.verify.tensors import UNIT, is_inexact
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.selections import SHIFTED

_PRODUCTS = {"mm": 0, "bmm": 0, "dot": 0, "vdot": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Product operators, with the index of the argument whose last axis is summed."""
_MATMULS = (*_PRODUCTS, "addbmm", "linear", "matmul", "_trilinear")
_SUMS = (
    "sum", "nansum", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "prod", "logsumexp",
    "linalg_vector_norm", "norm", "dist", "trace",
)  # fmt: skip
_SUMS_BY_NAME = ("loss", "avg_pool", "cross_entropy")
_PREFIX = ("cumsum", "logcumsumexp")
_NORMS = {"native_layer_norm": 1, "_fused_rms_norm": 1}
"""Norm operators, with the index of the argument that is the normalised shape."""
_MOVES = """
empty empty_like empty_strided new_empty zeros zeros_like new_zeros ones ones_like new_ones full
full_like new_full fill zero arange scalar_tensor lift_fresh lift_fresh_copy detach clone copy
contiguous to _to_copy cat stack repeat roll flip constant_pad_nd index index_select gather take
embedding select_scatter slice_scatter masked_fill scatter index_fill index_copy masked_select
nonzero sort argsort topk argmax argmin max min amax amin aminmax median kthvalue unique
_unsafe_view unsafe_split transpose unsqueeze squeeze tril triu eye rand randn uniform normal
bernoulli randint randperm max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d
_local_scalar_dense item equal any all where bucketize searchsorted one_hot isin reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d pixel_shuffle pixel_unshuffle channel_shuffle
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_linear1d
upsample_bicubic2d upsample_trilinear3d grid_sampler_2d im2col unfold rot90 diag diag_embed
diagonal_copy cummax cummin _cummax_helper _cummin_helper
"""
"""Operators that move, choose or create elements, without roundoff or with that of a short sum."""
_MOVING = frozenset(_MOVES.split())
_POINTWISE = (
    "hardswish", "log_sigmoid_forward", "_prelu_kernel", "prelu", "glu", "rrelu_with_noise",
    "polar",
)  # fmt: skip
"""Elementwise operators that torch does not tag as pointwise."""


def is_exact_operator(function: Any) -> bool:
    """Return True if an operator makes no roundoff: a view, or one that moves or creates
    elements.
    """
    return function.is_view or function.overloadpacket.__name__.rstrip("_") in _MOVING


@dataclass(frozen=True)
class Terms:
    """Numbers of terms of the longest sums in one forward of the reference."""

    longest: int
    """K: number of terms of the longest sum."""
    signed: int
    """K without the sums inside a softmax. Exponentials have one sign, so the error of their sum is
    proportional to the sum, not to the softmax's input."""

    prefix: int = 0
    """Length of the longest prefix sum, 0 where there is none."""
    unit: float = UNIT
    """Unit roundoff of the reference's coarsest products under the task's settings. It exceeds
    fp32's if torch runs an fp32 product in TF32, or if autocast rounds its factors."""
    double: bool = False
    """True if all real results of the reference's operators are fp64 and all complex ones
    complex128."""

    @classmethod
    def of(cls, longest: int) -> Terms:
        """Return `Terms` for one sum of `longest` terms of both signs."""
        return cls(longest, longest)

    def at_most(self, count: int) -> Terms:
        """Return a copy with `longest` and `signed` limited to `count`."""
        return replace(self, longest=min(self.longest, count), signed=min(self.signed, count))

    @property
    def fraction_bits(self) -> int:
        """Bits after the binary point that the factors of the reference's products keep: 23 for
        fp32."""
        return round(-math.log2(self.unit)) - 1


def terms(run: Callable[[], Any], unit_of: Callable[[str, Any], float] | None = None) -> Terms:
    """Call `run` and return the numbers of terms of its longest sums.

    `unit_of` returns the unit roundoff of products of a kind (`product_kind`) and dtype.
    """
    import torch

    longest = signed = 1
    prefix, unit = 0, UNIT
    precisions: set[torch.dtype] = set()

    def count(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal longest, signed, prefix, unit
        result = function(*args, **kwargs)
        precisions.update(x.dtype for x in _tensors(result) if is_inexact(x))
        tensors = list(_tensors([args, kwargs]))
        if tensors and not function.is_view and torch.Tag.pointwise not in function.tags:
            name = function.overloadpacket.__name__.rstrip("_")
            found = _terms(name, args, tensors, result)
            longest = max(longest, found)
            if name in _PREFIX and args[0].dim():
                prefix = max(prefix, args[0].shape[args[1]])
            if name not in SHIFTED:
                signed = max(signed, found)
            if unit_of is not None and (kind := product_kind(name)):
                unit = max([unit, *(unit_of(kind, x.dtype) for x in tensors if is_inexact(x))])
        return result

    with intercept_operators(count):
        run()
    double = bool(precisions) and precisions <= {torch.float64, torch.complex128}
    return Terms(longest, signed, prefix, unit, double)


def product_kind(name: str) -> str:
    """Return the setting that decides a product operator's arithmetic: `conv`, `rnn` or `matmul`.

    "" for operators that torch's settings do not affect.
    """
    if "convolution" in name:
        return "conv"
    if any(word in name for word in ("rnn", "lstm", "gru")):
        return "rnn"
    return "matmul" if name in _MATMULS or "scaled_dot_product" in name else ""


def largest_intermediate(run: Callable[[], Any]) -> float:
    """Call `run` and return the largest finite magnitude among its intermediate results."""
    sizes = [0.0]

    def measure(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not is_exact_operator(function):
            sizes.extend(largest_magnitude(tensor) for tensor in _tensors([result]))
        return result

    with intercept_operators(measure):
        run()
    return max(sizes)


def largest_magnitude(tensor: Any) -> float:
    """Return the largest finite absolute value of a floating tensor; 0 for other tensors."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return 0.0
    return float(tensor.detach().abs().nan_to_num(0.0, 0.0).amax())


def _terms(name: str, args: Any, tensors: Sequence[Any], result: Any) -> int:
    first = tensors[0]
    if name in _MOVING or name in _POINTWISE:
        return 1
    if name in _PRODUCTS:
        return args[_PRODUCTS[name]].shape[-1]
    if name in ("_softmax", "_log_softmax"):
        return first.shape[args[1]] if first.dim() else 1
    if name == "convolution":
        weight = args[1]
        kernel = weight[0, 0].numel()
        return kernel * (weight.shape[0] if args[6] else weight.shape[1])
    if name in _NORMS:
        return math.prod(args[_NORMS[name]])
    if "batch_norm" in name:
        trained = len(args) > 5 and args[5] is True
        return max(1, first.numel() // first.shape[1]) if trained else 1
    if name == "native_group_norm":
        channels, pixels, groups = args[4:7]
        return max(1, channels // groups * pixels)
    if name in _SUMS or any(word in name for word in _SUMS_BY_NAME):
        out = result[0] if isinstance(result, tuple | list) else result
        return max(1, first.numel() // max(1, out.numel()))
    return max((side for tensor in tensors for side in tensor.shape), default=1)


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
