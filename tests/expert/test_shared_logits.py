"""A loss of language models reads its logits once, though two operators reduce them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

LOSS = Path(__file__).parents[2] / "examples" / "loss.py"


@pytest.mark.parametrize("target", [Target("cpu"), Target("cuda", (9, 0), 132)], ids=str)
def test_logsumexp_and_cross_entropy_are_one_kernel(target: Target) -> None:
    """Both have the same maximum and the same sum of powers."""
    subject = open_subject(load_task(LOSS, device="cpu"))
    candidate = make_candidate(replace(subject, target=target), Options())
    assert candidate is not None
    text = candidate.files["model_new.py"]
    assert text.count("reads 16.8 MB") == 1
    assert any("logsumexp" in kernel and "cross_entropy" in kernel for kernel in candidate.kernels)


TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def forward(self, x, y):
        return {body}
def get_inputs(): return [torch.randn(4, 16, 32, 32), torch.randn(4, 16, 32, 32)]
def get_init_inputs(): return []
"""
BODIES = {
    "a pool": "torch.logsumexp(F.max_pool2d(x, 2), 1)",
    "a stored sum": "torch.logsumexp((t := (x - x.mean((2, 3), True)) * y), 1), t",
}


@pytest.mark.parametrize("target", [Target("cpu"), Target("cuda", (9, 0), 132)], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_logsumexp_of_a_stored_value_reads_one_tensor(tmp_path, name: str, target: Target) -> None:
    """The search for NaN needs no tensor of its own."""
    (tmp_path / "task.py").write_text(TEXT.format(body=BODIES[name]))
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    candidate = make_candidate(replace(subject, target=target), Options(chains=False))
    assert candidate is not None
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "negative" not in forward
    assert "minimum" not in forward
    assert re.search(r"logsumexp\w*kernel\w*\(logsumexp\w*, \w+\)", forward), forward
