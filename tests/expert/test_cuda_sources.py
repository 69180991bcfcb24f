"""CUDA candidates agree with the reference; test_clean_sources tests that they compile."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from modules import INPUTS, task_text  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options


@pytest.mark.gpu
@pytest.mark.parametrize("cls", INPUTS, ids=lambda cls: cls.__name__)
def test_cuda_candidate_agrees_with_reference(make, cls):
    assert_agrees(make(task_text(cls), cls.__name__, device="cuda"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["1, 1", "1, 7", "7, 1", "3, 8", "5, 4099", "2, 70000"])
@pytest.mark.parametrize("body", ["torch.softmax(x * 2 + 1, -1)", "(x * x).sum(0) + 1"])
@pytest.mark.parametrize("options", [Options(), Options(threads=128), Options(vector=False)])
def test_cuda_candidate_agrees_with_reference_at_odd_sizes(make, shape, body, options):
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
    assert_agrees(make(text, "Model", options, "cuda"), "cuda")
