"""How far honest arithmetic lies from fp64, and how far coarser arithmetic: the gates' constants.

For each operator family and size: several honest fp32 implementations and several that cheat in
precision (factors rounded to TF32, fp16 or bf16), each judged by the strict rule on zero-mean
inputs. Prints a table and writes every number as JSON.

    python benchmarks/calibrate.py --device cuda --out docs/calibration.json

`rms` is rms(e) over sqrt(K) rms(s), which the first term of the gate holds below 8; `local` is
max|e| over the same, held below 40. `ratio` is what the whole rule says: at most 1 passes.
Not covered: memory-bound operators whose error is one rounding, which no gate could get wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cuagent.verify.bounds import UNIT
from cuagent.verify.inputs import Inputs
from cuagent.verify.reductions import terms as terms_of
from cuagent.verify.tolerance import Expected, strict

Function = Callable[..., Tensor]
PERTURBATIONS = 8
DRAWS = 3


@dataclass(frozen=True)
class Family:
    """One operator at one size: the reference, and others that compute the same."""

    name: str
    size: str
    shapes: tuple[tuple[int, ...], ...]
    reference: Function
    honest: dict[str, Function]
    products: bool = True
    """Whether tensor cores could take part; else rounding the inputs stands for coarser types."""


@dataclass(frozen=True)
class Row:
    """One implementation on one draw."""

    family: str
    size: str
    implementation: str
    honest: bool
    longest_sum: int
    rms: float
    local: float
    own_rms: float
    """The reference's own error in the same unit."""
    ratio: float
    passed: bool


def rounded(x: Tensor, bits: int) -> Tensor:
    """fp32 with `bits` of mantissa, rounded to nearest."""
    drop = 23 - bits
    words = x.view(torch.int32)
    return ((words + (1 << (drop - 1))) & ~((1 << drop) - 1)).view(torch.float32)


def tensor_cores(function: Function) -> Function:
    """With products in TF32, where the device has them."""

    def run(*tensors: Tensor) -> Tensor:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        try:
            return function(*tensors)
        finally:
            matmul.allow_tf32 = cudnn.allow_tf32 = False

    return run


def coarser(family: Family) -> dict[str, Function]:
    """The same in coarser arithmetic."""
    run = family.reference
    found: dict[str, Function] = {
        "tf32 inputs": lambda *t: run(*(rounded(x, 10) for x in t)),
        "fp16 inputs": lambda *t: run(*(x.half().float() for x in t)),
        "bf16 inputs": lambda *t: run(*(x.bfloat16().float() for x in t)),
        "bf16 throughout": lambda *t: run(*(x.bfloat16() for x in t)).float(),
    }
    if family.products and torch.backends.cuda.is_built() and torch.cuda.is_available():
        found["tf32 tensor cores"] = tensor_cores(run)
    return found


# -- other ways to the same results, in fp32 throughout


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
    """As a block of 32 threads does: each its own stride, then a tree."""
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


def families() -> list[Family]:
    found = []
    for k in (64, 1024, 16384):
        products: dict[str, Function] = {
            "library": lambda a, b: a @ b,
            "sequential": sequential_product,
            "blocked": split_product(max(2, k // 32)),
            "split-K": split_product(8),
        }
        shapes = ((256, k), (k, 256))
        found.append(Family("matmul", f"K={k}", shapes, products["library"], products))
    convolutions: dict[str, Function] = {
        "library": lambda x, w: F.conv2d(x, w, padding=1),
        "library, benchmarked": conv_benchmarked,
        "library, channels last": conv_channels_last,
        "im2col": conv_unfolded,
        "taps": conv_by_taps,
    }
    for channels in (16, 256):
        sizes = ((4, channels, 32, 32), (64, channels, 3, 3))
        reference = convolutions["library"]
        found.append(Family("conv2d", f"C={channels}", sizes, reference, convolutions))
    for n in (256, 8192):
        rows = (64, n)
        found += [
            Family(
                "layer norm",
                f"n={n}",
                (rows, (n,), (n,)),
                lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
                {
                    "library": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
                    "two passes": normed(two_passes),
                    "one pass": normed(one_pass),
                    "welford": normed(welford),
                },
                products=False,
            ),
            Family(
                "softmax",
                f"n={n}",
                (rows,),
                lambda x: x.softmax(-1),
                {
                    "library": lambda x: x.softmax(-1),
                    "sequential": softmax_by(sequential_sum),
                    "exp2, strided": softmax_by(strided_sum, exp_by_two),
                    "online": online_softmax,
                },
                products=False,
            ),
            Family(
                "sum",
                f"n={n}",
                (rows,),
                lambda x: x.sum(-1),
                {
                    "library": lambda x: x.sum(-1),
                    "sequential": sequential_sum,
                    "strided": strided_sum,
                    "halves": lambda x: x[..., ::2].sum(-1) + x[..., 1::2].sum(-1),
                },
                products=False,
            ),
            Family(
                "variance",
                f"n={n}",
                (rows,),
                lambda x: x.var(-1, correction=0),
                {
                    "library": lambda x: x.var(-1, correction=0),
                    "two passes": lambda x: two_passes(x)[1],
                    "one pass": lambda x: one_pass(x)[1],
                    "welford": lambda x: welford(x)[1],
                },
                products=False,
            ),
            Family(
                "cumsum",
                f"n={n}",
                (rows,),
                lambda x: x.cumsum(-1),
                {
                    "library": lambda x: x.cumsum(-1),
                    "sequential": scan_sequential,
                    "blocked": scan_blocked,
                    "doubling": scan_doubling,
                },
                products=False,
            ),
            Family(
                "cross entropy",
                f"n={n}",
                (rows, rows),
                row_entropy,
                {
                    "library": row_entropy,
                    "strided": row_entropy_by_hand,
                    "sequential": row_entropy_sequential,
                },
                products=False,
            ),
            Family(
                "mean square",
                f"n={n}",
                (rows, rows),
                squares,
                {
                    "library": squares,
                    "rows": lambda a, b: strided_sum(strided_sum((a - b).square())) / a.numel(),
                    "sequential": lambda a, b: (
                        sequential_sum(sequential_sum((a - b).square()) / a.shape[1]) / a.shape[0]
                    ),
                },
                products=False,
            ),
        ]
    found.append(
        Family(
            "mean of one sign",
            "n=65536",
            ((16, 65536),),
            lambda x: x.abs().mean(-1),
            {
                "library": lambda x: x.abs().mean(-1),
                "strided": lambda x: strided_sum(x.abs()) / x.shape[-1],
                "sequential": lambda x: sequential_sum(x.abs()) / x.shape[-1],
            },
            products=False,
        )
    )
    for n in (128, 1024):
        found.append(
            Family(
                "attention",
                f"n={n}",
                ((2, 4, n, 64),) * 3,
                F.scaled_dot_product_attention,
                {
                    "library": F.scaled_dot_product_attention,
                    "plain": attention,
                    "online": attention_online,
                },
            )
        )
    found.append(
        Family(
            "gelu of a product",
            "K=1024",
            ((128, 1024), (1024, 128)),
            lambda a, b: F.gelu(a @ b),
            {
                "library": lambda a, b: F.gelu(a @ b),
                "split": lambda a, b: F.gelu(split_product(4)(a, b)),
                "sequential": lambda a, b: F.gelu(sequential_product(a, b)),
            },
        )
    )
    return found


def rows_of(family: Family, device: str) -> list[Row]:
    """Every implementation on a few draws; of each the draw on which it came out worst."""
    found: dict[str, Row] = {}
    for draw in range(DRAWS):
        generator = torch.Generator(device=device).manual_seed(1000 + draw)
        tensors = [torch.randn(s, generator=generator, device=device) for s in family.shapes]
        expected = _expected(family.reference, tensors, generator)
        terms = terms_of(lambda given=tensors: family.reference(*given))  # type: ignore[misc]
        unit = math.sqrt(terms.longest) * _rms(expected.spread[0])
        own = _rms(expected.declared[0].double() - expected.precise[0]) / unit
        everyone = [(family.honest, True), (coarser(family), False)]
        for name, function, honest in ((n, f, h) for fs, h in everyone for n, f in fs.items()):
            output = function(*tensors)
            error = output.double() - expected.precise[0]
            finding = strict([output], expected, Inputs.NORMAL, terms)
            row = Row(
                family.name, family.size, name, honest, terms.longest,
                _rms(error) / unit, float(error.abs().max()) / unit, own,
                finding.ratio, finding.passed,
            )  # fmt: skip
            if name not in found or (row.ratio > found[name].ratio) == honest:
                found[name] = row
    return list(found.values())


def _expected(
    function: Function, tensors: Sequence[Tensor], generator: torch.Generator
) -> Expected:
    precise = function(*(x.double() for x in tensors))
    total = torch.zeros_like(precise)
    for _ in range(PERTURBATIONS):
        moved = [
            x.double()
            * (1 + UNIT * torch.randn(x.shape, generator=generator, device=x.device).double())
            for x in tensors
        ]
        total += (function(*moved) - precise).square()
    return Expected([function(*tensors)], [precise], [(total / PERTURBATIONS).sqrt()])


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    rows: list[Row] = []
    for family in families():
        rows += rows_of(family, options.device)
    for row in rows:
        verdict = "passes" if row.passed else "fails"
        odd = "" if row.passed == row.honest else "  <-- wrong"
        print(
            f"{row.family:18} {row.size:8} {row.implementation:24} "
            f"rms {row.rms:9.3g} local {row.local:9.3g} ratio {row.ratio:9.3g} {verdict}{odd}"
        )
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    data = {"device": name, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
    if options.out is not None:
        options.out.write_text(json.dumps(data, indent=1) + "\n")
    honest = max(row.ratio for row in rows if row.honest)
    coarse = min(row.ratio for row in rows if not row.honest)
    print(f"honest at most {honest:.3g} of the bound, coarser at least {coarse:.3g} of it")


if __name__ == "__main__":
    main()
