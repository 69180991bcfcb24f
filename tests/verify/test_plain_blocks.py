"""Blocks of finite numbers are judged without masks and copies; the findings stay the same."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.oracle import slice_checks
from cuagent.verify.rules import tolerance
from cuagent.verify.rules.bounds import Sums
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.trace.reductions import Terms

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


def drawn(dtype: torch.dtype, device: str) -> tuple[Tensor, Expected]:
    """Return an output and the right answer to it, with an error of a few units."""
    generator = torch.Generator(device).manual_seed(3)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    y = torch.randn(1000, dtype=wide, generator=generator, device=device)
    r = y.to(dtype)
    x = (y * (1 + 2e-7 * torch.randn(1000, generator=generator, device=device))).to(dtype)
    return x, Expected([r], [y], [(y.abs() * 1e-8).to(y.dtype)], [])


def finding(x: Tensor, expected: Expected, kind: Inputs) -> Finding:
    return strict([x], expected, kind, Terms.of(64))


def same(first: Any, second: Any) -> bool:
    """Return True if numbers are equal up to the order of a sum in fp64, and all else is equal."""
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or first == second or math.isclose(first, second, rel_tol=1e-12)
    return bool(first == second)


def changed(x: Tensor, how: str) -> Tensor:
    x = x.clone()
    match how:
        case "wrong element":
            x[7] += 0.5
        case "wrong scale":
            x *= 1.1
        case "NaN":
            x[7] = math.nan
        case "infinity":
            x[7] = math.inf
    return x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["right", "wrong element", "wrong scale", "NaN", "infinity"])
def test_findings_equal_those_of_masked_blocks(
    device: str, dtype: torch.dtype, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, expected = drawn(dtype, device)
    x = changed(x, how)
    for kind in (Inputs.NORMAL, Inputs.OWN, Inputs.MIXED, Inputs.FEW, Inputs.NAN):
        with monkeypatch.context() as patch:
            patch.setattr(tolerance, "_plain_sums", lambda *_: None)
            slow = finding(x, expected, kind)
        quick = finding(x, expected, kind)
        assert all(map(same, astuple(quick), astuple(slow))), (kind, quick, slow)
        skipped = kind is Inputs.NAN and how in ("NaN", "infinity")
        assert quick.passed is (how == "right" or skipped)


@pytest.mark.parametrize("where", ["declared", "precise", "both"])
def test_infinite_answers_are_judged_with_masks(where: str) -> None:
    """An answer beyond the range of fp32 is infinite there, and a finite or infinite output is
    right; a NaN is wrong."""
    x, expected = drawn(torch.float32, "cpu")
    for name in ("declared", "precise") if where == "both" else (where,):
        getattr(expected, name)[0][5] = math.inf
    for value, passes in ((math.inf, True), (math.nan, False)):
        x[5] = value
        assert finding(x, expected, Inputs.OWN).passed is passes
    if where == "both":
        x[5] = 1.0
        assert not finding(x, expected, Inputs.OWN).passed


def test_answer_beyond_the_range_of_the_output_is_no_plain_block() -> None:
    x, expected = drawn(torch.float16, "cpu")
    expected.precise[0][5] = 7e4
    expected.declared[0][5] = x[5] = 65504.0
    assert finding(x, expected, Inputs.OWN).passed, "the largest number stands for an infinity"


@pytest.mark.parametrize("device", DEVICES)
def test_largest_ratio_of_plain_blocks_uses_every_bound(device: str) -> None:
    x, expected = drawn(torch.float32, device)
    each = (x, expected.declared[0], expected.precise[0], expected.spread[0])
    blocks = list(zip(*(tensor.split(64) for tensor in each), strict=True))
    wide = [tuple(tensor.double() for tensor in block) for block in blocks]
    for bound in (
        tolerance.Gates(1.0, 1e-7, 0.0, 1e-7),
        tolerance.Gates(1.0, 1e-9, 1e-6, 0.0),
        tolerance.Gates(1.0, math.inf, 0.0, 0.0),
    ):
        errors = Sums.of(blocks).block_errors
        assert len(errors) == len(blocks)
        right = tolerance._largest_ratio(wide, bound)
        assert tolerance._largest_plain_ratio(blocks, bound, errors, 0.0) == right
        assert tolerance._largest_plain_ratio(blocks, bound, errors, right + 1) == right + 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lost", [None, 0, 2])
def test_errors_of_slices_equal_those_of_finite_elements(
    device: str, lost: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lost`: which of the three tensors has a NaN, which leaves that element out."""
    x, expected = drawn(torch.float32, device)
    tensors = [x, expected.declared[0].clone(), expected.precise[0].clone()]
    if lost is not None:
        tensors[lost][3] = math.nan
    quick = slice_checks._errors(*tensors)
    own = slice_checks._errors(tensors[2], tensors[1], tensors[2])
    monkeypatch.setattr(slice_checks, "_plain_errors", lambda *_: [math.nan])
    assert quick == pytest.approx(slice_checks._errors(*tensors), rel=1e-12)
    assert own == pytest.approx(slice_checks._errors(tensors[2], tensors[1], tensors[2]), rel=1e-12)
    assert all(map(math.isfinite, quick))


def test_blocks_of_small_errors_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, expected = drawn(torch.float32, "cpu")
    each = (x, expected.declared[0], expected.precise[0], expected.spread[0])
    blocks = list(zip(*(tensor.split(64) for tensor in each), strict=True))
    read: list[int] = []
    plain = tolerance.largest_size

    def counted(tensor: Tensor) -> Tensor:
        read.append(tensor.numel())
        return plain(tensor)

    errors = Sums.of(blocks).block_errors
    monkeypatch.setattr(tolerance, "largest_size", counted)
    flat = tolerance.Gates(1.0, 1e-7, 0.0, 0.0)
    found = tolerance._largest_plain_ratio(blocks, flat, errors, 0.0)
    assert found == max(errors) / 1e-7
    assert read == [64], "only the block of the largest error"
