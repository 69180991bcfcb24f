"""Compute torch operators in fp32 with the algorithms that kernels use, for `calibrate.py`.

The variants are sequential, blocked, strided and online forms of products, sums, moments, softmax,
scans, attention and convolutions. Each has the same inputs and outputs as its operator.
Invariant: every variant is honest; `calibrate.py` applies coarser arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Tensor]


def sequential_product(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    for k in range(a.shape[1]):
        total.addcmul_(a[:, k : k + 1], b[k : k + 1])
    return total


def split_product(parts: int) -> Function:
    def run(a: Tensor, b: Tensor) -> Tensor:
        pieces = zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)
        total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
        for left, right in pieces:
            total += left @ right
        return total

    return run


def sequential_sum(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[:-1], device=x.device)
    for k in range(x.shape[-1]):
        total += x[..., k]
    return total


def strided_sum(x: Tensor) -> Tensor:
    """Return the sum of each row, added in the order of a block of 32 threads: each thread adds
    with stride 32, then a tree adds the 32 sums."""
    total = x.view(*x.shape[:-1], -1, 32).transpose(-1, -2)
    partial = sequential_sum(total)
    while partial.shape[-1] > 1:
        half = partial.shape[-1] // 2
        partial = partial[..., :half] + partial[..., half:]
    return partial[..., 0]


def welford(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.zeros(x.shape[:-1], device=x.device)
    square = torch.zeros_like(mean)
    for k in range(x.shape[-1]):
        delta = x[..., k] - mean
        mean = mean + delta / (k + 1)
        square = square + delta * (x[..., k] - mean)
    return mean, square / x.shape[-1]


def normed(moments: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Function:
    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean, variance = moments(x)
        return (x - mean[..., None]) * torch.rsqrt(variance[..., None] + 1e-5) * w + b

    return run


def two_passes(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = strided_sum(x) / x.shape[-1]
    return mean, strided_sum((x - mean[..., None]).square()) / x.shape[-1]


def one_pass(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = strided_sum(x) / x.shape[-1]
    return mean, strided_sum(x * x) / x.shape[-1] - mean * mean


def softmax_by(total: Function, exp: Function = torch.exp) -> Function:
    def run(x: Tensor) -> Tensor:
        e = exp(x - x.amax(-1, keepdim=True))
        return e / total(e)[..., None]

    return run


def exp_by_two(x: Tensor) -> Tensor:
    return torch.exp2(x * 1.4426950408889634)


def online_softmax(x: Tensor) -> Tensor:
    top = torch.full(x.shape[:-1], -math.inf, device=x.device)
    total = torch.zeros_like(top)
    for piece in x.split(64, -1):
        new = torch.maximum(top, piece.amax(-1))
        total = total * torch.exp(top - new) + torch.exp(piece - new[..., None]).sum(-1)
        top = new
    return torch.exp(x - top[..., None]) / total[..., None]


def scan_sequential(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    total = torch.zeros(x.shape[:-1], device=x.device)
    for k in range(x.shape[-1]):
        total = total + x[..., k]
        out[..., k] = total
    return out


def scan_blocked(x: Tensor) -> Tensor:
    inner = x.view(*x.shape[:-1], -1, 32)
    inner = scan_sequential(inner)
    offsets = scan_sequential(inner[..., -1]) - inner[..., -1]
    return (inner + offsets[..., None]).view_as(x)


def scan_doubling(x: Tensor) -> Tensor:
    out, step = x.clone(), 1
    while step < x.shape[-1]:
        out = torch.cat([out[..., :step], out[..., step:] + out[..., :-step]], -1)
        step *= 2
    return out


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def attention_online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    top = torch.full(q.shape[:-1], -math.inf, device=q.device)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for key, value in zip(k.split(64, -2), v.split(64, -2), strict=True):
        scores = q @ key.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
        new = torch.maximum(top, scores.amax(-1))
        weights, shrink = torch.exp(scores - new[..., None]), torch.exp(top - new)
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + weights @ value
        top = new
    return out / total[..., None]


def conv_unfolded(x: Tensor, w: Tensor) -> Tensor:
    columns = F.unfold(x, w.shape[-1], padding=1)
    return (w.flatten(1) @ columns).view(x.shape[0], w.shape[0], *x.shape[2:])


def conv_by_taps(x: Tensor, w: Tensor) -> Tensor:
    padded = F.pad(x, (1, 1, 1, 1))
    out = torch.zeros(x.shape[0], w.shape[0], *x.shape[2:], device=x.device)
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            window = padded[:, :, i : i + x.shape[2], j : j + x.shape[3]]
            out += torch.einsum("nchw,oc->nohw", window, w[:, :, i, j])
    return out


def conv_channels_last(x: Tensor, w: Tensor) -> Tensor:
    last = torch.channels_last
    return F.conv2d(x.to(memory_format=last), w.to(memory_format=last), padding=1).contiguous()


def conv_benchmarked(x: Tensor, w: Tensor) -> Tensor:
    with torch.backends.cudnn.flags(benchmark=True, allow_tf32=False):
        return F.conv2d(x, w, padding=1)


def squares(a: Tensor, b: Tensor) -> Tensor:
    return F.mse_loss(a, b)


def row_entropy(x: Tensor, y: Tensor) -> Tensor:
    return -(x.log_softmax(-1) * y.softmax(-1)).sum(-1)


def row_entropy_by_hand(x: Tensor, y: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    level = top + strided_sum(torch.exp(x - top))[..., None].log()
    return strided_sum((level - x) * softmax_by(strided_sum)(y))


def row_entropy_sequential(x: Tensor, y: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    level = top + sequential_sum(exp_by_two(x - top))[..., None].log()
    return sequential_sum((level - x) * softmax_by(sequential_sum)(y))
