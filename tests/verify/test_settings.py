"""The precision contract in verdicts: which settings apply where, and what error they admit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Device, Precision, TorchSettings, load_task
from cuagent.verify import Reason, Referee, Verdict
from cuagent.verify.inputs.derive import derive
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.oracle.places import NearTies
from cuagent.verify.rules.bounds import UNITS
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.trace.reductions import Terms, terms

NETWORK = """
import torch
{settings}

class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 96)
    def forward(self, x):
        {body}

def get_inputs():
    return [torch.randn(48, 64)]
"""
PLAIN = "return torch.relu(self.linear(x))"
AUTOCAST = """with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        return torch.relu(y.float())"""
SETTINGS = """
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
"""
SEEN = """f = {{k: "ieee" if v == "none" else v for k, v in read_flags().items()}}
        if (f["matmul"], f["conv"] == "ieee", f["cudnn_benchmark"]) != {wanted}:
            raise RuntimeError(str(f))
        return torch.relu(self.linear(x))"""
TF32_BITS = 10
"""Bits behind the point of TF32."""


@pytest.fixture
def opened(tmp_path: Path, referee: Referee) -> Callable[..., object]:
    """Return a context that opens a reference with these settings and this body."""

    @contextmanager
    def at(settings: str, body: str, precision: str = "match") -> Iterator[Referee]:
        path = tmp_path / "network.py"
        path.write_text(NETWORK.format(settings=settings, name="Model", body=body))
        task = load_task(str(path), device="cpu", precision=precision)
        with Referee(task, call_s=5.0, fork_server=referee.fork_server) as made:
            yield made

    return at


def verdict_of(referee: Referee, body: str, settings: str = "") -> Verdict:
    text = NETWORK.format(settings=settings, name="ModelNew", body=body)
    attempt = Attempt((("model_new.py", text),))
    return referee.verify(attempt, build(attempt, Device.CPU))


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("match", ("tf32", True, True)),
        ("fp32", ("ieee", True, True)),
        ("tf32", ("tf32", False, True)),
    ],
)
def test_candidate_runs_under_the_settings_that_the_tasks_file_makes(
    precision: str, wanted: tuple[object, ...], opened: Callable[..., object]
) -> None:
    with opened(SETTINGS, PLAIN, precision) as referee:
        body = SEEN.format(wanted=wanted)
        verdict = verdict_of(referee, body, "from cuagent.task.flags import read_flags")
        assert verdict.accepted, verdict.detail
        assert referee.facts.settings.cudnn_benchmark
        assert referee.facts.settings.matmul == "tf32"
        assert verdict.settings == referee.settings_line
        assert verdict.settings.endswith("cudnn.benchmark on")
        assert 0 < verdict.errors["reference"] < 1e-6
        assert 0 < verdict.errors["candidate"] < 1e-6
        assert verdict.precision is (Precision.FP32 if precision == "fp32" else Precision.MATCH)


def test_reference_runs_under_its_own_settings_and_under_ieee_where_fp32_is_demanded(
    opened: Callable[..., object],
) -> None:
    body = SEEN.format(wanted=("tf32", True, True))
    head = f"{SETTINGS}\nfrom cuagent.task.flags import read_flags"
    with opened(head, body) as referee:
        assert verdict_of(referee, PLAIN).accepted
        assert not referee.processes.reference("eager").closed
    # The first run reads the file's own settings; IEEE is set for all later ones.
    other = body.replace("if (", 'if getattr(self, "ran", False) and (').replace(
        "return", "self.ran = True; return"
    )
    other = other.replace("('tf32', True, True)", "('ieee', True, True)")
    with opened(head, other, "fp32") as referee:
        assert verdict_of(referee, PLAIN).accepted


def test_reference_under_autocast_bounds_the_candidate_by_its_own_error(
    opened: Callable[..., object],
) -> None:
    with opened("", AUTOCAST) as referee:
        assert referee.facts.terms.unit == UNITS[Precision.BF16]
        same, exact = verdict_of(referee, AUTOCAST), verdict_of(referee, PLAIN)
        assert same.accepted, same
        assert exact.accepted, exact
        assert same.errors["candidate"] == pytest.approx(same.errors["reference"])
        assert exact.errors["candidate"] < same.errors["reference"] / 1e3
        rounded = "w = (self.linear.weight * 24).round() / 24; " + PLAIN.replace(
            "self.linear(x)", "torch.nn.functional.linear(x, w, self.linear.bias)"
        )
        assert not verdict_of(referee, rounded).accepted
        skipped = PLAIN.replace("self.linear(x)", "self.linear(x) - 0.2 * (x[:, :1] > 1.9)")
        assert verdict_of(referee, skipped).reason is Reason.WRONG_VALUES


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Round fp32 numbers to TF32, to nearest."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def products(round_factors: Callable[[torch.Tensor], torch.Tensor], kind: Inputs) -> Expected:
    """Return the expectation of a product of 64 by 256 and 256 by 32, with rounded factors."""
    a, b = factors(kind)
    y = a.double() @ b.double()
    r = round_factors(a) @ round_factors(b)
    spread = 2.0**-24 * (2 * a.double().square() @ b.double().square()).sqrt()
    return Expected([r], [y], [spread])


def factors(kind: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    own = [torch.empty(64, 256)]
    (a,) = derive(kind, own, 1, fraction_bits=TF32_BITS)
    generator = torch.Generator().manual_seed(2)
    b = torch.randn(256, 32, generator=generator)
    return a, b if kind is Inputs.NORMAL else (b * 1.2).round().clamp(-2, 2)


def test_own_error_of_a_tf32_reference_admits_tf32_and_nothing_coarser() -> None:
    a, b = factors(Inputs.NORMAL)
    own, known = products(tf32, Inputs.NORMAL), replace(Terms.of(256), unit=2.0**-11)
    kept, truncated = tf32(a) @ tf32(b), (a.half().float() @ b.half().float())
    coarse = a.bfloat16().float() @ b.bfloat16().float()
    judged = [strict([x], own, Inputs.NORMAL, known) for x in (kept, a @ b, truncated, coarse)]
    assert [found.passed for found in judged] == [True, True, True, False]
    # Under fp32 the reference's own error is smaller, and so is the bound.
    ieee = products(lambda x: x, Inputs.NORMAL)
    judged = [
        strict([x], ieee, Inputs.NORMAL, Terms.of(256), Precision.FP32) for x in (kept, a @ b)
    ]
    assert [found.passed for found in judged] == [False, True]


@pytest.mark.parametrize("kind", [Inputs.INTEGER, Inputs.CANCELLATION, Inputs.FEW])
def test_draws_that_judge_logic_are_exact_in_tf32(kind: Inputs) -> None:
    a, b = factors(kind)
    assert torch.equal(tf32(a), a)
    own, known = products(tf32, kind), replace(Terms.of(256), unit=2.0**-11)
    right = own.declared[0]
    assert torch.equal(right.double(), own.precise[0])
    assert strict([right.clone()], own, kind, known).passed
    wrong = right.clone()
    wrong[3, 5] += 1
    assert not strict([wrong], own, kind, known).passed
    if kind is not Inputs.INTEGER:
        assert not strict([a.bfloat16().float() @ b], own, kind, known).passed


@pytest.mark.parametrize("kind", [Inputs.CANCELLATION, Inputs.FEW])
@pytest.mark.parametrize("bits", [7, 10, 23])
def test_draws_need_as_many_bits_as_the_references_products_keep(kind: Inputs, bits: int) -> None:
    (drawn,) = derive(kind, [torch.empty(64, 256)], 3, fraction_bits=bits)
    kept = {7: drawn.bfloat16(), 10: drawn.half(), 23: drawn}[bits]
    assert torch.equal(kept.float(), drawn)
    coarser = (drawn * 2 ** (min(bits, 16) - 2)).round() / 2 ** (min(bits, 16) - 2)
    assert not torch.equal(coarser, drawn)


def test_unit_is_that_of_the_coarsest_product_that_the_reference_calls() -> None:
    own = TorchSettings()

    def unit_of(kind: str, dtype: torch.dtype) -> float:
        return own.unit(kind, Device.CUDA)

    x, w, image = torch.randn(8, 8), torch.randn(4, 3, 3, 3), torch.randn(1, 3, 8, 8)
    assert terms(lambda: (x @ x).sum(), unit_of).unit == 2.0**-24
    assert terms(lambda: torch.conv2d(image, w), unit_of).unit == 2.0**-11
    own = own.with_ieee()
    assert terms(lambda: torch.conv2d(image, w), unit_of).unit == 2.0**-24
    own = own.with_tf32()
    found = terms(lambda: torch.nn.functional.linear(x, x), unit_of)
    assert (found.unit, found.fraction_bits) == (2.0**-11, TF32_BITS)
    assert found.at_most(4).unit == found.unit


def test_near_ties_reach_as_far_as_the_references_own_products_round() -> None:
    ieee = NearTies(16, Precision.MATCH, 2)
    assert NearTies(16, Precision.MATCH, 2, 2.0**-11).reach > 100 * ieee.reach
    assert NearTies(16, Precision.TF32, 2).reach == ieee.reach


CONVOLUTION = """
import torch

class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(64, 64, 3)
    def forward(self, x):
        torch.backends.cudnn.allow_tf32 = {tf32}
        return self.conv(x){more}

def get_inputs():
    return [torch.randn(8, 64, 32, 32)]
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tf32", "more", "accepted"),
    [
        ("match", True, "", True),
        ("match", False, "", True),
        ("match", True, " * 1.002", False),
        ("fp32", True, "", False),
        ("fp32", False, "", True),
        ("tf32", True, "", True),
    ],
)
def test_tf32_convolution_is_right_where_the_users_own_runs_in_tf32(
    precision: str, tf32: bool, more: str, accepted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "convolution.py"
    text = CONVOLUTION.replace("        torch.backends.cudnn.allow_tf32 = {tf32}\n", "")
    path.write_text(text.format(name="Model", more=""))
    task = load_task(str(path), device="cuda", precision=precision)
    given = CONVOLUTION.format(name="ModelNew", tf32=tf32, more=more)
    attempt = Attempt((("model_new.py", given),))
    with Referee(task, call_s=5.0) as made:
        assert made.facts.terms.unit == (2.0**-24 if precision == "fp32" else 2.0**-11)
        verdict = made.verify(attempt, build(attempt, Device.CUDA))
    assert verdict.accepted is accepted, verdict
    own = verdict.errors["reference"]
    assert own < 1e-6 if precision == "fp32" else 1e-5 < own < 1e-3
