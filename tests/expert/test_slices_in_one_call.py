"""Slices of new memory are taken by one call of `as_strided`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(24, 72), nn.Linear(24, 24)
    def forward(self, x):
        {source}
        q, k, v = (y.view(2, 5, 3, 4, 6)[:, :, i].transpose(1, 2) for i in range(3))
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 24)
        return torch.sigmoid(self.b(z)) * 2 + x
def get_inputs(): return [torch.randn(2, 5, 24)]
def get_init_inputs(): return []
"""


def made(path, source: str, options=None):
    text = TASK.replace("{source}", source)
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    candidate = make_candidate(subject, options or Options(products=False))
    assert candidate is not None
    for file, content in candidate.files.items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_text(content)
    return candidate.files["model_new.py"]


@pytest.mark.slow
def test_heads_of_a_linear_layer_agree_with_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "load", emulated)
    assert made(tmp_path, "y = self.a(x)").count(".as_strided(") == 3
    model, task = imported(tmp_path / "model_new.py"), imported(tmp_path / "task.py")
    reference, new = task.Model().eval(), model.ModelNew().eval()
    new.load_state_dict(reference.state_dict())
    (x,) = task.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(x), reference(x))


def test_slices_of_an_input_keep_their_calls(tmp_path):
    source = "y = x.repeat(1, 1, 3)"
    assert ".as_strided(" not in made(tmp_path, source)


def test_compiled_methods_keep_their_calls(tmp_path):
    text = made(tmp_path, "y = F.relu(self.a(x)) * 2", options=Options(compile="default"))
    assert ".as_strided(" not in text
