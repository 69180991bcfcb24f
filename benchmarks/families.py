"""Define the operator families that `calibrate.py` measures: a reference and honest variants.

For each operator, one function returns its family at a given size. `families` returns all families,
in the order of docs/calibration.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from variants import (
    Function,
    attention,
    attention_online,
    conv_benchmarked,
    conv_by_taps,
    conv_channels_last,
    conv_unfolded,
    exp_by_two,
    normed,
    one_pass,
    online_softmax,
    row_entropy,
    row_entropy_by_hand,
    row_entropy_sequential,
    scan_blocked,
    scan_doubling,
    scan_sequential,
    sequential_product,
    sequential_sum,
    softmax_by,
    split_product,
    squares,
    strided_sum,
    two_passes,
    welford,
)

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Family:
    """One operator at one size: the reference, and honest implementations of the same result, by
    name."""

    name: str
    size: str
    shapes: Shapes
    reference: Function
    honest: dict[str, Function]
    products: bool = True
    """True if the operator contains matrix products, which tensor cores can compute."""


def families() -> list[Family]:
    """Return all operator families at all sizes."""
    reductions = [family for n in (256, 8192) for family in _row_reductions(n)]
    return [
        *(_matmul(k) for k in (64, 1024, 16384)),
        *(_conv2d(channels) for channels in (16, 256)),
        *reductions,
        _mean_of_one_sign(65536),
        *(_attention(n) for n in (128, 1024)),
        _gelu_of_a_product(1024),
    ]


def _row_reductions(n: int) -> list[Family]:
    """Return the families of operators without products on fp32 inputs of shape (64, n)."""
    return [
        _layer_norm(n),
        _softmax(n),
        _sum(n),
        _variance(n),
        _cumsum(n),
        _cross_entropy(n),
        _mean_square(n),
    ]


def _rows(n: int) -> tuple[int, int]:
    return 64, n


def _family(name: str, size: str, shapes: Shapes, variants: dict[str, Function]) -> Family:
    """Return a family; the first of `variants` is its reference."""
    return Family(name, size, shapes, next(iter(variants.values())), variants)


def _without_products(name: str, n: int, shapes: Shapes, variants: dict[str, Function]) -> Family:
    return replace(_family(name, f"n={n}", shapes, variants), products=False)


def _matmul(k: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda a, b: a @ b,
        "sequential": sequential_product,
        "blocked": split_product(max(2, k // 32)),
        "split-K": split_product(8),
    }
    return _family("matmul", f"K={k}", ((256, k), (k, 256)), variants)


def _conv2d(channels: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x, w: F.conv2d(x, w, padding=1),
        "library, benchmarked": conv_benchmarked,
        "library, channels last": conv_channels_last,
        "im2col": conv_unfolded,
        "taps": conv_by_taps,
    }
    shapes = ((4, channels, 32, 32), (64, channels, 3, 3))
    return _family("conv2d", f"C={channels}", shapes, variants)


def _layer_norm(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        "two passes": normed(two_passes),
        "one pass": normed(one_pass),
        "welford": normed(welford),
    }
    return _without_products("layer norm", n, (_rows(n), (n,), (n,)), variants)


def _softmax(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x: x.softmax(-1),
        "sequential": softmax_by(sequential_sum),
        "exp2, strided": softmax_by(strided_sum, exp_by_two),
        "online": online_softmax,
    }
    return _without_products("softmax", n, (_rows(n),), variants)


def _sum(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x: x.sum(-1),
        "sequential": sequential_sum,
        "strided": strided_sum,
        "halves": lambda x: x[..., ::2].sum(-1) + x[..., 1::2].sum(-1),
    }
    return _without_products("sum", n, (_rows(n),), variants)


def _variance(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x: x.var(-1, correction=0),
        "two passes": lambda x: two_passes(x)[1],
        "one pass": lambda x: one_pass(x)[1],
        "welford": lambda x: welford(x)[1],
    }
    return _without_products("variance", n, (_rows(n),), variants)


def _cumsum(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x: x.cumsum(-1),
        "sequential": scan_sequential,
        "blocked": scan_blocked,
        "doubling": scan_doubling,
    }
    return _without_products("cumsum", n, (_rows(n),), variants)


def _cross_entropy(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": row_entropy,
        "strided": row_entropy_by_hand,
        "sequential": row_entropy_sequential,
    }
    return _without_products("cross entropy", n, (_rows(n), _rows(n)), variants)


def _mean_square(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": squares,
        "rows": lambda a, b: strided_sum(strided_sum((a - b).square())) / a.numel(),
        "sequential": lambda a, b: (
            sequential_sum(sequential_sum((a - b).square()) / a.shape[1]) / a.shape[0]
        ),
    }
    return _without_products("mean square", n, (_rows(n), _rows(n)), variants)


def _mean_of_one_sign(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda x: x.abs().mean(-1),
        "strided": lambda x: strided_sum(x.abs()) / x.shape[-1],
        "sequential": lambda x: sequential_sum(x.abs()) / x.shape[-1],
    }
    return _without_products("mean of one sign", n, ((16, n),), variants)


def _attention(n: int) -> Family:
    variants: dict[str, Function] = {
        "library": F.scaled_dot_product_attention,
        "plain": attention,
        "online": attention_online,
    }
    return _family("attention", f"n={n}", ((2, 4, n, 64),) * 3, variants)


def _gelu_of_a_product(k: int) -> Family:
    variants: dict[str, Function] = {
        "library": lambda a, b: F.gelu(a @ b),
        "split": lambda a, b: F.gelu(split_product(4)(a, b)),
        "sequential": lambda a, b: F.gelu(sequential_product(a, b)),
    }
    return _family("gelu of a product", f"K={k}", ((128, k), (k, 128)), variants)
