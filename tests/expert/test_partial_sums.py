"""Norms and means of convolutions from sums that the kernels of the convolutions store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import partials, qualify
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
CASES = {
    "transposed, both phases of a dimension": (
        "nn.ConvTranspose3d(3, 16, 3, stride=2, padding=1)", "nn.GroupNorm(4, 16)",
        "h = self.c(x); return F.hardswish(self.n(torch.sigmoid(h) * h))", "8, 3, 16, 32, 32",
    ),
    "nothing between": (
        "nn.Conv2d(8, 24, 3)", "nn.GroupNorm(3, 24)", "return self.n(self.c(x))", "8, 8, 91, 90",
    ),
    "instance norm": (
        "nn.Conv2d(8, 24, 3)", "nn.InstanceNorm2d(24)", "return self.n(F.relu(self.c(x))) / 2",
        "8, 8, 91, 90",
    ),
    "pointwise": (
        "nn.Conv2d(32, 40, 1)", "nn.GroupNorm(4, 40)", "return F.silu(self.n(self.c(x)))",
        "8, 32, 91, 90",
    ),
    "uneven phases": (
        "nn.ConvTranspose2d(40, 48, 3, stride=3)", "nn.GroupNorm(4, 48)",
        "return self.n(F.gelu(self.c(x)))", "4, 40, 60, 61",
    ),
}  # fmt: skip
MEAN = (
    "nn.Conv2d(8, 24, 3)", "nn.Identity()",
    "return F.adaptive_avg_pool2d(F.gelu(self.c(x)), 1).flatten(1)", "8, 8, 91, 90",
)  # fmt: skip


def text_of(layer: str, norm: str, forward: str, shape: str, dtype: str = "float32") -> str:
    forward = f"\n{' ' * 8}".join(forward.split("; "))
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.n = {layer}, {norm}
        self.to(torch.{dtype})
    def forward(self, x):
        {forward}
def get_inputs(): return [(torch.randn({shape}) + 3).to(torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.fixture(autouse=True)
def long_rows(monkeypatch):
    """Treat rows of any length as too long for the cache, so that partial sums are used."""
    monkeypatch.setattr(partials, "CACHED_BYTES", 0)


@pytest.fixture
def generate(tmp_path) -> Callable[..., Candidate]:
    """Return a function that generates a candidate of a task text for a GPU, which need not exist
    on this machine."""

    def generate(text: str, options: Options | None = None) -> Candidate:
        path = tmp_path / "task.py"
        path.write_text(text)
        subject = replace(open_subject(load_task(f"{path}:Model")), target=HOPPER)
        made = make_candidate(subject, options or Options())
        assert made is not None
        return made

    return generate


def test_norm_reads_the_result_of_a_convolution_once(generate):
    candidate = generate(text_of(*CASES["nothing between"]))
    assert len(candidate.kernels) == 3
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert forward.count("conv2d_means") == 3, "allocated, stored and read"
    normalised = candidate.files[f"kernels/{candidate.kernels[2]}.cu"]
    assert "Sum::" not in normalised


def test_mean_of_a_convolution_needs_no_result_in_memory(generate):
    candidate = generate(text_of(*MEAN))
    module = candidate.files["model_new.py"]
    assert "gelu_sums_out" in module
    assert "gelu__out" not in module
    assert "gelu_means" not in module


@pytest.mark.parametrize(
    "forward",
    [
        "h = self.c(x); return self.n(h) + h[..., :1]",
        "h = self.c(x); return h.max(1, keepdim=True)[0] + self.n(h)",
        "return F.max_pool2d(self.n(self.c(x)), 2)",
    ],
)
def test_every_partial_sum_is_computed_or_left_out(generate, forward):
    module = generate(text_of(*CASES["nothing between"][:2], forward, "8, 8, 91, 90"))
    assert "own partial" not in module.files["model_new.py"]


def test_small_results_are_read_again(generate, monkeypatch):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    candidate = generate(text_of(*CASES["nothing between"][:3], "8, 8, 20, 20"))
    assert "_means" not in candidate.files["model_new.py"]


@pytest.mark.parametrize(("places", "stored"), [("91, 90", False), ("1500, 1500", True)])
def test_rows_that_a_cache_holds_are_read_again(generate, monkeypatch, places, stored):
    monkeypatch.setattr(partials, "CACHED_BYTES", 96 << 20)
    candidate = generate(text_of(*CASES["nothing between"][:3], f"2, 8, {places}"))
    assert ("_means" in candidate.files["model_new.py"]) is stored


def test_mean_of_short_rows_needs_no_result_in_memory(generate, monkeypatch):
    monkeypatch.setattr(partials, "CACHED_BYTES", 96 << 20)
    assert "gelu_sums_out" in generate(text_of(*MEAN)).files["model_new.py"]


def test_sums_are_left_out_on_request(generate):
    candidate = generate(text_of(*CASES["nothing between"]), Options(partial_sums=False))
    assert "_means" not in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", [*CASES, "mean"])
def test_norm_agrees_with_fp64_in_the_interpreter(generate, interpreted, monkeypatch, name):
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(partials, "LEAST_TILES", 0)
    layer, norm, forward, shape = MEAN if name == "mean" else CASES[name]
    _, channels, *places = shape.split(", ")
    small = ", ".join(
        ["2", channels, *(str(min(int(n), 8 if len(places) > 2 else 20)) for n in places)]
    )
    candidate = generate(text_of(layer, norm, forward, small))
    assert "tl.sum(kept, 0)" in candidate.files["model_new.py"]
    interpreted(candidate)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*CASES, "mean"])
def test_cuda_norm_agrees_with_reference(make, name, dtype):
    text = text_of(*(MEAN if name == "mean" else CASES[name]), dtype)
    assert_agrees(make(text, "Model", Options(), "cuda"), "cuda")
