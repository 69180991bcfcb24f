"""The families of operators that `calibrate.py` measures: a reference, and others that compute it.

One function a kind of operator, each for its sizes. `families` gives them in the order of
docs/calibration.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from other_ways import (
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
    """One operator at one size: the reference, and others that compute the same."""

    name: str
    size: str
    shapes: Shapes
    reference: Function
    honest: dict[str, Function]
    products: bool = True
    """Whether tensor cores could take part; else rounding the inputs stands for coarser types."""


def families() -> list[Family]:
    """All, at all sizes."""
    by_rows = [family for n in (256, 8192) for family in _over_rows(n)]
    return [
        *(_matmul(k) for k in (64, 1024, 16384)),
        *(_conv2d(channels) for channels in (16, 256)),
        *by_rows,
        _mean_of_one_sign(65536),
        *(_attention(n) for n in (128, 1024)),
        _gelu_of_a_product(1024),
    ]


def _over_rows(n: int) -> list[Family]:
    """Those that reduce rows of `n`, without products: (64, n) fp32 each."""
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


def _first(name: str, size: str, shapes: Shapes, ways: dict[str, Function]) -> Family:
    """The first of the ways is the reference."""
    return Family(name, size, shapes, next(iter(ways.values())), ways)


def _without_products(name: str, n: int, shapes: Shapes, ways: dict[str, Function]) -> Family:
    return replace(_first(name, f"n={n}", shapes, ways), products=False)


def _matmul(k: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda a, b: a @ b,
        "sequential": sequential_product,
        "blocked": split_product(max(2, k // 32)),
        "split-K": split_product(8),
    }
    return _first("matmul", f"K={k}", ((256, k), (k, 256)), ways)


def _conv2d(channels: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x, w: F.conv2d(x, w, padding=1),
        "library, benchmarked": conv_benchmarked,
        "library, channels last": conv_channels_last,
        "im2col": conv_unfolded,
        "taps": conv_by_taps,
    }
    shapes = ((4, channels, 32, 32), (64, channels, 3, 3))
    return _first("conv2d", f"C={channels}", shapes, ways)


def _layer_norm(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        "two passes": normed(two_passes),
        "one pass": normed(one_pass),
        "welford": normed(welford),
    }
    return _without_products("layer norm", n, (_rows(n), (n,), (n,)), ways)


def _softmax(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x: x.softmax(-1),
        "sequential": softmax_by(sequential_sum),
        "exp2, strided": softmax_by(strided_sum, exp_by_two),
        "online": online_softmax,
    }
    return _without_products("softmax", n, (_rows(n),), ways)


def _sum(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x: x.sum(-1),
        "sequential": sequential_sum,
        "strided": strided_sum,
        "halves": lambda x: x[..., ::2].sum(-1) + x[..., 1::2].sum(-1),
    }
    return _without_products("sum", n, (_rows(n),), ways)


def _variance(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x: x.var(-1, correction=0),
        "two passes": lambda x: two_passes(x)[1],
        "one pass": lambda x: one_pass(x)[1],
        "welford": lambda x: welford(x)[1],
    }
    return _without_products("variance", n, (_rows(n),), ways)


def _cumsum(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x: x.cumsum(-1),
        "sequential": scan_sequential,
        "blocked": scan_blocked,
        "doubling": scan_doubling,
    }
    return _without_products("cumsum", n, (_rows(n),), ways)


def _cross_entropy(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": row_entropy,
        "strided": row_entropy_by_hand,
        "sequential": row_entropy_sequential,
    }
    return _without_products("cross entropy", n, (_rows(n), _rows(n)), ways)


def _mean_square(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": squares,
        "rows": lambda a, b: strided_sum(strided_sum((a - b).square())) / a.numel(),
        "sequential": lambda a, b: (
            sequential_sum(sequential_sum((a - b).square()) / a.shape[1]) / a.shape[0]
        ),
    }
    return _without_products("mean square", n, (_rows(n), _rows(n)), ways)


def _mean_of_one_sign(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda x: x.abs().mean(-1),
        "strided": lambda x: strided_sum(x.abs()) / x.shape[-1],
        "sequential": lambda x: sequential_sum(x.abs()) / x.shape[-1],
    }
    return _without_products("mean of one sign", n, ((16, n),), ways)


def _attention(n: int) -> Family:
    ways: dict[str, Function] = {
        "library": F.scaled_dot_product_attention,
        "plain": attention,
        "online": attention_online,
    }
    return _first("attention", f"n={n}", ((2, 4, n, 64),) * 3, ways)


def _gelu_of_a_product(k: int) -> Family:
    ways: dict[str, Function] = {
        "library": lambda a, b: F.gelu(a @ b),
        "split": lambda a, b: F.gelu(split_product(4)(a, b)),
        "sequential": lambda a, b: F.gelu(sequential_product(a, b)),
    }
    return _first("gelu of a product", f"K={k}", ((128, k), (k, 128)), ways)
