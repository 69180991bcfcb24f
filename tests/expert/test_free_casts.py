"""Kernels read half-precision tensors in place of float32 copies, and compute values of rows where
they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import Imported, assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]

from cuagent import kernels
from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(24, 40, dtype=torch.bfloat16)
        self.wide = torch.nn.Linear(24, 24)
        self.table = torch.nn.Parameter(torch.randn(16, 24))
        self.d = torch.nn.Parameter(torch.randn(24))
    def forward(self, x, y, n):
        {body}
def get_inputs():
    return [torch.randn(6, 24).bfloat16(), torch.randn(6, 24, 16), torch.arange(6)]
def get_init_inputs(): return []
"""
STATES = """h = self.layer(x)
        u, b = h.split((24, 16), dim=-1)
        rate = F.softplus(u.float())
        step = (rate * u.float())[:, :, None] * b.float()[:, None, :]
        s = y * torch.exp(-rate)[:, :, None] + step
        return s, s.sum(-1) + self.d * u.float()"""
BODIES = {
    "states": STATES,
    "norm": """h = self.layer(x).float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)""",
    "copy that is also an output": """h = F.silu(x * 2).float()
        return h, h[:, :, None] * y""",
    "copy that a product reads": """h = F.silu(x * 2).to(self.d.dtype)
        return self.wide(h), (h[:, :, None] * y).sum(-1)""",
    "values of rows": """t = F.silu(self.wide(y.mean(-1))) + 1
        s = (y * y).sum(-1) * t
        return s, y * s[:, :, None]""",
    "table in another order": """h = F.gelu(y + 1).permute(0, 2, 1)
        return (h + self.table).sum(1), self.layer(x)""",
    "positions": """angles = n[:, None].float() * self.d
        return torch.cat((angles, angles), -1).cos(), n.to(x.dtype) * 2, self.layer(x)""",
    "value of a row that many readers need": """t = torch.tanh(self.wide(x.to(self.d.dtype)))
        return (y * t[:, :, None]).sum(-1) + t, (y + 1)""",
}


def made(path, body: str) -> Candidate:
    (path / "task.py").write_text(TEXT.format(body=body))
    subject = open_subject(load_task(f"{path / 'task.py'}:Model", device="cpu"))
    candidate = make_candidate(replace(subject, target=Target("cuda", (8, 0), 108)), Options())
    assert candidate is not None
    return candidate


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_emulated_kernels_agree_with_the_reference(tmp_path, monkeypatch, name):
    candidate = made(tmp_path, BODIES[name])
    for file, content in candidate.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.setattr(kernels, "load", emulated)
    module, task = imported(tmp_path / "model_new.py"), imported(tmp_path / "task.py")
    assert_agrees(Imported(candidate, module.ModelNew, task.Model, task.get_inputs))


def test_one_kernel_computes_states_and_their_rates(tmp_path):
    candidate = made(tmp_path, STATES)
    assert len(candidate.kernels) == 1
    assert "_to_copy" not in candidate.files["model_new.py"]


def test_a_value_of_rows_does_not_overwrite_what_other_threads_read(tmp_path):
    body = """t = torch.cumsum(self.wide(y.mean(-1)), 1)
        s = (y * y).sum(-1) * t
        return s, y * s[:, :, None]"""
    assert "# in place" not in made(tmp_path, body).files["model_new.py"]
