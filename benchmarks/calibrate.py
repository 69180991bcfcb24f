"""Measure errors of honest and of coarser arithmetic against fp64, to calibrate the gates.

For each operator family and size, the strict rule judges several honest fp32 implementations and
several that cheat in precision (factors rounded to TF32, fp16 or bf16), on zero-mean inputs. The
program prints a table and writes every number as JSON.

    python benchmarks/calibrate.py --device cuda --precision fp32 --out docs/calibration.json

`--precision match` runs the reference under torch's defaults. If these round the factors of
products to TF32 (convolutions on a GPU), implementations with TF32 or fp16 factors count as honest
too.

With error e, spread s and K terms of the longest sum, `rms` is rms(e) / (sqrt(K) rms(s)), which the
first term of the gate bounds by 8. `local` is max|e| over the same denominator, bounded by 40.
`ratio` is the error over the bound of the whole rule: at most 1 passes.
Not covered: memory-bound operators with a single rounding error, which any gate judges right.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from families import Family, families
from torch import Tensor
from variants import Function

from cuagent.task import Device, Precision, TorchSettings, read_settings
from cuagent.task.flags import flags_set
from cuagent.task.settings import baseline_settings
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.tensors import UNIT
from cuagent.verify.trace.reductions import terms as terms_of

TF32 = 2.0**-11
"""Unit roundoff of TF32."""
PERTURBATIONS = 8
"""Number of perturbed fp64 evaluations from which a spread is estimated."""
DRAWS = 3
"""Number of random draws of the inputs for each implementation."""


@dataclass(frozen=True)
class Row:
    """Errors of one implementation on one draw, and the strict rule's result; the module's
    docstring defines the figures."""

    family: str
    size: str
    implementation: str
    honest: bool
    longest_sum: int
    rms: float
    local: float
    own_rms: float
    """Rms error of the reference itself, divided by sqrt(K) rms(s) like `rms`."""
    ratio: float
    passed: bool


def rounded(x: Tensor, bits: int) -> Tensor:
    """Return fp32 values rounded to `bits` bits of mantissa, to nearest."""
    drop = 23 - bits
    words = x.view(torch.int32)
    return ((words + (1 << (drop - 1))) & ~((1 << drop) - 1)).view(torch.float32)


def tensor_cores(function: Function) -> Function:
    """Return the function changed to run with TF32 products where the device supports them."""

    def run(*tensors: Tensor) -> Tensor:
        with flags_set(TorchSettings().with_tf32().flags):
            return function(*tensors)

    return run


def coarser(family: Family) -> dict[str, Function]:
    """Return the family's reference in coarser arithmetic, by the arithmetic's name."""
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


def rows_of(family: Family, device: str, settings: TorchSettings) -> list[Row]:
    """Return one row for each implementation of a family: its draw that is worst for the strict
    rule.

    The worst draw has the largest `ratio` for an honest implementation, and the smallest for a
    coarser one.
    """
    found: dict[str, Row] = {}

    def unit_of(kind: str, dtype: torch.dtype) -> float:
        return settings.unit(kind, Device(device)) if dtype is torch.float32 else UNIT

    for draw in range(DRAWS):
        generator = torch.Generator(device=device).manual_seed(1000 + draw)
        tensors = [torch.randn(s, generator=generator, device=device) for s in family.shapes]
        expected = _expected(family.reference, tensors, generator)
        terms = terms_of(
            lambda given=tensors: family.reference(*given),  # type: ignore[misc]
            unit_of,
        )
        unit = math.sqrt(terms.longest) * _rms(expected.spread[0])
        own = _rms(expected.declared[0].double() - expected.precise[0]) / unit
        groups = [(family.honest, True), (coarser(family), False)]
        for name, function, exact in ((n, f, h) for fs, h in groups for n, f in fs.items()):
            honest = exact or (terms.unit >= TF32 and name.startswith(("tf32", "fp16")))
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
        perturbed = [
            x.double()
            * (1 + UNIT * torch.randn(x.shape, generator=generator, device=x.device).double())
            for x in tensors
        ]
        total += (function(*perturbed) - precise).square()
    return Expected([function(*tensors)], [precise], [(total / PERTURBATIONS).sqrt()])


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _line(row: Row) -> str:
    verdict = "passes" if row.passed else "fails"
    note = "" if row.passed == row.honest else "  <-- wrong"
    figures = f"rms {row.rms:9.3g} local {row.local:9.3g} ratio {row.ratio:9.3g}"
    return f"{row.family:18} {row.size:8} {row.implementation:24} {figures} {verdict}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("match", "fp32"), default="match")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = baseline_settings(read_settings(), Precision(options.precision))
    settings.apply()
    torch.set_grad_enabled(False)
    rows = [row for family in families() for row in rows_of(family, options.device, settings)]
    for row in rows:
        print(_line(row))
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    about = {"device": name, "torch": torch.__version__, "precision": options.precision}
    about["settings"] = settings.line(Device(options.device))
    data = about | {"rows": [asdict(row) for row in rows]}
    if options.out is not None:
        options.out.write_text(json.dumps(data, indent=1) + "\n")
    honest = max(row.ratio for row in rows if row.honest)
    coarse = min(row.ratio for row in rows if not row.honest)
    print(f"honest: at most {honest:.3g} of the bound; coarser: at least {coarse:.3g} of the bound")


if __name__ == "__main__":
    main()
