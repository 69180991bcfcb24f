"""Complete candidates: captured, rewritten, generated, compiled by g++ and compared with fp64."""

from __future__ import annotations

import pytest
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import (  # type: ignore[import-not-found]
    INPUTS,
    BasicBlock,
    Gated,
    Mlp,
    OneElement,
    task_text,
)

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.export import CaptureError
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cls", INPUTS, ids=lambda cls: cls.__name__)
def test_candidate_agrees_with_reference(make, cls):
    assert_agrees(make(task_text(cls), cls.__name__))


def test_merged_linear_layers_agree_with_reference(make):
    made = make(task_text(Gated), "Gated", Options(merge=True))
    module = made.candidate.files["model_new.py"]
    # Layers of few rows are products by transposed weights.
    assert module.count("torch.mm(") + module.count("F.linear(") == 1
    assert_agrees(made)


def test_folded_weights_follow_changed_parameters(make):
    text = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
    def forward(self, x):
        return torch.tanh(self.norm(self.layer(x))) * 2
def get_inputs(): return [torch.randn(4, 6)]
def get_init_inputs(): return []
"""
    made = make(text, "Model")
    new, x = assert_agrees(made), torch.randn(4, 6)
    with torch.no_grad():
        new(x)
        new.norm.weight.mul_(-3)
        new.layer.bias.data = torch.ones(5)
        expected = made.reference.forward(new, x)
        torch.testing.assert_close(new(x), expected)


def test_unsupported_shapes_and_autograd_run_reference(make):
    made = make(task_text(Mlp), "Mlp")
    new = assert_agrees(made)
    x = torch.randn(3, 24)
    torch.testing.assert_close(new(x), made.reference.forward(new, x))
    supported = torch.randn(11, 24)
    new(supported).sum().backward()
    assert new.net[0].weight.grad is not None


def test_operators_in_keep_stay_torch_calls(make):
    text = task_text(Mlp)
    full = make(text, "Mlp").candidate
    origins = frozenset().union(*full.origins)
    assert "layer_norm" in origins
    fewer = make(text, "Mlp", Options(keep=frozenset({"layer_norm"})))
    assert (
        "F.layer_norm" in fewer.candidate.files["model_new.py"]
        or "layer_norm.default" in (fewer.candidate.files["model_new.py"])
    )
    assert_agrees(fewer)


@pytest.mark.parametrize("shape", ["1, 1", "1, 7", "7, 1", "3, 8", "2, 65", "5, 4099"])
@pytest.mark.parametrize(
    "body",
    ["torch.softmax(x * 2 + 1, -1)", "(x * x).sum(0) + 1", "(x - x.mean(1, keepdim=True)).relu()"],
)
def test_candidate_agrees_with_reference_at_odd_sizes(make, shape, body):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))


def test_layer_norm_keeps_precision_with_large_offset(make):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.layer_norm(x, (300,)) * 2
def get_inputs(): return [torch.randn(6, 300) + 1e4]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model"))


def _subject(tmp_path, text, entry="Model"):
    path = tmp_path / "task.py"
    path.write_text(text)
    return open_subject(load_task(f"{path}:{entry}", device="cpu"))


def test_single_matrix_product_gives_no_candidate(tmp_path):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b
def get_inputs(): return [torch.randn(9, 9), torch.randn(9, 9)]
def get_init_inputs(): return []
"""
    assert make_candidate(_subject(tmp_path, text), Options()) is None


def test_control_flow_on_values_raises_one_line_error(tmp_path):
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x
def get_inputs(): return [torch.randn(4)]
def get_init_inputs(): return []
"""
    with pytest.raises(CaptureError, match=r"^torch\.export: [^\n]+$"):
        _subject(tmp_path, text)


@pytest.mark.parametrize(
    "expression", ["x.masked_select(x > 0).mean() * 2", "x.repeat_interleave(counts, 0) * 2"]
)
def test_shape_that_depends_on_values_is_reported_in_one_line(make, expression):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        counts = torch.tensor([1, 0, 2])
        return {expression}
def get_inputs(): return [torch.randn(3, 4)]
def get_init_inputs(): return []
"""
    with pytest.raises(CaptureError, match=r"^the shape of \w+ depends on values of tensors$"):
        make(text, "Model")


def test_candidate_text_is_deterministic(tmp_path):
    subject = _subject(tmp_path, task_text(OneElement), "OneElement")
    assert make_candidate(subject, Options()) == make_candidate(subject, Options())


@pytest.mark.parametrize("cls", [Mlp, BasicBlock], ids=lambda cls: cls.__name__)
def test_candidate_with_compiled_remainder_agrees_with_reference(make, cls):
    made = make(task_text(cls), cls.__name__, Options(compile="default"))
    text = made.candidate.files["model_new.py"]
    assert "@torch.compile(dynamic=False)" in text
    assert '.operator("' in text
    new = assert_agrees(made)
    inputs = made.inputs()
    with torch.no_grad():
        before = new(*inputs)
        for parameter in new.parameters():
            parameter.mul_(1.5)
        after = new(*inputs)
    assert not torch.allclose(before, after)
