"""Slices of a large reference: which references have them, and that answers in slices are equal to
whole ones."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cuagent.task import load_task, open_reference
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.oracle import describe as describing
from cuagent.verify.oracle.describe import Described, describe
from cuagent.verify.oracle.slice_checks import is_consistent
from cuagent.verify.oracle.slices import Combine
from cuagent.verify.oracle.spread import Spread

HEAD = "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
ROWS, WIDTH = 96, 512
BUDGET = 5 * 8 * ROWS * WIDTH
"""Five times the bytes of two inputs, in fp32."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: threads that share busy processors wait for each other."""
    before, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)  # as in the oracle's process
    yield
    torch.set_num_threads(before)
    torch.set_grad_enabled(grad)


def described(tmp_path: Path, forward: str, inputs: str) -> Described:
    path = tmp_path / "task.py"
    body = textwrap.indent(textwrap.dedent(forward).strip(), "    ")
    path.write_text(f"{HEAD}{body}\n\ndef get_inputs():\n    return {inputs}\n")
    return describe(open_reference(load_task(str(path), device="cpu")), BUDGET)


ONE = f"[torch.randn({ROWS}, {WIDTH})]"
TWO = f"[torch.rand({ROWS}, {WIDTH}), torch.rand({ROWS}, {WIDTH})]"
ROW_NORM = "def forward(self, x): return x / x.square().mean(1, keepdim=True).sqrt()"
SLICED = {
    "rows": (ROW_NORM, ONE, Combine.JOIN),
    "columns": ("def forward(self, x): return x.softmax(0)", ONE, Combine.JOIN),
    "mean": ("def forward(self, x, y): return F.huber_loss(x, y)", TWO, Combine.MEAN),
    "sum": ("def forward(self, x, y): return (x - y).square().sum()", TWO, Combine.SUM),
    "half": (
        "def forward(self, x): return F.gelu(x)",
        f"[torch.randn({ROWS}, {WIDTH}, dtype=torch.bfloat16)]",
        Combine.JOIN,
    ),
    "shared": (
        "def forward(self, x, w): return x @ w",
        f"[torch.randn({8 * ROWS}, 128), torch.randn(128, 16)]",
        Combine.JOIN,
    ),
    "autocast": (
        # Its fp64 run is one only if conversions to fp32 keep fp64.
        "def forward(self, x, w):\n    with torch.autocast('cpu', torch.bfloat16):\n"
        "        return (x @ w).float()",
        f"[torch.randn({8 * ROWS}, 128), torch.randn(128, 16)]",
        Combine.JOIN,
    ),
    "chosen": (
        "def forward(self, x): return x.gather(1, x.argmax(1, keepdim=True)) + x * 2",
        ONE,
        Combine.JOIN,
    ),
}
WHOLE = {
    "norm": ("def forward(self, x): return x / x.norm()", ONE),
    "root": ("def forward(self, x, y): return F.mse_loss(x, y).sqrt()", TWO),
    "standardized in both": (
        "def forward(self, x): return ((x - x.mean(0)) / (x - x.mean(0)).std(1, keepdim=True))",
        ONE,
    ),
    "flipped in both": ("def forward(self, x): return x.flip(0, 1)", ONE),
    "far neighbour": (
        # A slice does not reach a row that is 60 rows before, so few rows alone look independent.
        "def forward(self, x):\n    y = F.pad(x, (300, 0, 60, 0))\n"
        f"    return x + y[:{ROWS}, :{WIDTH}][: x.shape[0], : x.shape[1]]",
        ONE,
    ),
    "rows apart in both": (
        # Neither the first rows nor the first, the middle and the last slice show them.
        "def forward(self, x):\n    y = x * 2\n    y[40:43] = 0\n"
        "    y[:, 250:253] = 1\n    return y",
        ONE,
    ),
    "scaled by its size": ("def forward(self, x): return x / x.numel()", ONE),
}


@pytest.mark.parametrize("name", SLICED)
def test_reference_whose_slices_are_independent_is_computed_in_slices(
    tmp_path: Path, name: str
) -> None:
    forward, inputs, combine = SLICED[name]
    reference = described(tmp_path, forward, inputs).reference
    assert reference.slicing is not None
    assert reference.slicing.combine is combine
    assert len(list(reference.slicing.ranges())) >= 8
    assert reference.fp64


@pytest.mark.parametrize("name", WHOLE)
def test_reference_whose_slices_depend_on_each_other_is_computed_whole(
    tmp_path: Path, name: str
) -> None:
    forward, inputs = WHOLE[name]
    assert described(tmp_path, forward, inputs).reference.slicing is None


@pytest.mark.parametrize("name", SLICED)
def test_answer_and_spread_in_slices_equal_those_of_a_whole_run(tmp_path: Path, name: str) -> None:
    forward, inputs, _ = SLICED[name]
    reference = described(tmp_path, forward, inputs).reference
    own = reference.own_inputs(3)
    whole = reference.forward_fp64(own).outputs
    sliced = [torch.full_like(y, torch.nan) for y in whole]
    assert reference.write_fp64(own, sliced)
    torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-12)
    assert is_consistent(
        reference, own, reference.forward(own), sliced, torch.Generator().manual_seed(1)
    )
    spreads = []
    for slicing in (reference.slicing, None):
        reference.slicing = slicing
        spread = [torch.zeros_like(y) for y in whole]
        Spread(reference, 0).measure(own, whole, spread, 8, torch.Generator().manual_seed(2))
        spreads.append(float(spread[0].square().mean().sqrt()))
    assert spreads[0] == pytest.approx(spreads[1], rel=0.05 if whole[0].numel() > 1 else 0.9)


def test_first_of_equal_elements_wins_in_every_slice(tmp_path: Path) -> None:
    """A tie that the reference's own precision makes, in one slice, leaves the order open."""
    reference = described(tmp_path, *SLICED["chosen"][:2]).reference
    assert reference.slicing is not None
    own = reference.own_inputs(0)
    assert reference.keeps_first(own)
    reference.declared.forward = lambda x: x.gather(1, (x + 1e6).argmax(1, keepdim=True)) + x * 2
    reference.precise.forward = reference.declared.forward
    tied = [torch.zeros(ROWS, WIDTH)]
    assert reference.keeps_first(tied)
    tied[0][-1, 1] = 1e-6
    assert not reference.keeps_first(tied)


def test_draw_on_which_slices_depend_on_each_other_is_not_consistent(tmp_path: Path) -> None:
    """A reference may be independent on usual numbers only; each draw is tested where it differs
    most."""
    forward = """
    def forward(self, x):
        y = x * 2
        y[30:32] += 0.5 * (x[-1, -1] > 100) * (x.shape[0] > 90)
        return y
    """
    reference = described(tmp_path, forward, ONE).reference
    assert reference.slicing is not None
    own = reference.own_inputs(0)
    assert _consistent(reference, own) == {True}
    own[0][-1, -1] = 200.0
    assert _consistent(reference, own) == {False}


def test_draw_on_which_added_slices_depend_on_each_other_is_not_consistent(tmp_path: Path) -> None:
    forward = "def forward(self, x, y): return (x - y).abs().mean() * (1 + (x > 100).any())"
    reference = described(tmp_path, forward, TWO).reference
    assert reference.slicing is not None
    assert not reference.slicing.joins
    own = reference.own_inputs(0)
    assert _consistent(reference, own) == {True}
    own[0][-1, -1] = 200.0
    assert _consistent(reference, own) == {False}


def _consistent(reference: Any, own: list[torch.Tensor]) -> set[bool]:
    """Return the results of the test on one draw, with different seeds."""
    outputs = reference.forward(own)
    exact = [torch.zeros_like(x, dtype=torch.float64) for x in outputs]
    reference.write_fp64(own, exact)
    return {
        is_consistent(reference, own, outputs, exact, torch.Generator().manual_seed(n))
        for n in range(5)
    }


def test_repertoire_of_a_large_task_is_that_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliced = described(tmp_path, ROW_NORM, ONE)
    monkeypatch.setattr(describing, "large", lambda *_: False)
    whole = described(tmp_path, ROW_NORM, ONE)
    assert sliced.facts.large
    assert not whole.facts.large
    assert set(sliced.facts.kinds) ^ set(whole.facts.kinds) <= {Inputs.FLAT, Inputs.TAILS}
    assert sliced.facts.terms == whole.facts.terms


def test_large_references_are_described_with_few_own_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform inputs have ends, which usually takes eight draws in memory together."""
    drawn: list[Any] = []
    own_inputs = describing.TwoPrecisions.own_inputs
    monkeypatch.setattr(
        describing.TwoPrecisions,
        "own_inputs",
        lambda self, seed: drawn.append(seed) or own_inputs(self, seed),
    )
    found = described(tmp_path, SLICED["mean"][0], TWO)
    assert not drawn
    assert found.repertoire.ends == ((0.0,), (0.0,))
