"""Modules that overwrite a tensor attribute, such as a hidden state, in forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from importing import imported  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.export import CaptureError, capture
from cuagent.expert.capture.subject import open_subject
from cuagent.task import load_task

TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(4, 200)
    def forward(self, x, h):
        self.hidden.copy_(h)
        self.hidden = {update}
        return {{"sums": self.hidden.sum(1) * 2}}
def get_inputs(): return [torch.randn(4, 200), torch.randn(4, 200)]
def get_init_inputs(): return []
"""
UPDATE = "torch.tanh(self.hidden + x) * 2"


def test_state_is_assigned_as_in_the_reference(tmp_path):
    (tmp_path / "task.py").write_text(TASK.format(update=UPDATE))
    subject = open_subject(load_task(f"{tmp_path}/task.py:Model", device="cpu"))
    candidate = make_candidate(subject, Options())
    assert candidate is not None
    for name, text in candidate.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    task, made = imported(tmp_path / "task.py"), imported(tmp_path / "model_new.py")
    reference, new = task.Model().eval(), made.ModelNew().eval()
    inputs = task.get_inputs()
    with torch.no_grad():
        expected, got = reference(*inputs), new(*inputs)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(new.hidden, reference.hidden)


def test_graph_of_a_replayed_module_returns_the_state(generate):
    text = generate(TASK.format(update=UPDATE), options=Options(graph=True)).files["model_new.py"]
    assert "result, self.hidden = replay(self, ModelNew._compute, (x, h,))" in text


def test_state_that_forward_reads_is_refused(tmp_path):
    (tmp_path / "task.py").write_text(TASK.format(update=UPDATE).replace("copy_(h)", "add_(h)"))
    with pytest.raises(CaptureError, match="forward reads hidden, which it changes"):
        open_subject(load_task(f"{tmp_path}/task.py:Model", device="cpu"))


def test_state_that_is_an_input_is_refused(tmp_path):
    (tmp_path / "task.py").write_text(TASK.format(update="self.hidden"))
    with pytest.raises(CaptureError, match="forward changes hidden in place"):
        open_subject(load_task(f"{tmp_path}/task.py:Model", device="cpu"))


def test_module_is_as_before_after_a_capture(tmp_path):
    (tmp_path / "task.py").write_text(TASK.format(update=UPDATE))
    task = imported(Path(tmp_path / "task.py"))
    model = task.Model().eval()
    hidden = model.hidden
    assert capture(model, task.get_inputs()).states == ("hidden",)
    assert model.__dict__["hidden"] is hidden
    assert not list(model.buffers())
