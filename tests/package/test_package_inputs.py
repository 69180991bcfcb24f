"""Inputs written as text draw the same values as cuagent does from the same seed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch

from cuagent.package.inputs import inputs_text
from cuagent.task import flatten, load_task, open_reference

SOURCE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
    def forward(self, *x):
        return x[0]
"""


@pytest.mark.parametrize(
    "inputs",
    [
        "f32[4,8]",
        "f64[]; bf16[3]; f16[2]<2.5; c64[2]",
        "i64[40]<7, i32[3]; u8[5]; bool[9]",
        "[f32[2], (bool[3], i8[4])], {'x': f32[1]<1, 'y': [0.5, None]}; 3; 'mean'",
    ],
)
def test_inputs_text_draws_same_values_from_same_seed(tmp_path: Path, inputs: str) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    task = load_task(f"{tmp_path / 'net.py'}:Net", inputs=inputs, init="3, bias=None", device="cpu")
    text = inputs_text(task)
    assert text is not None
    functions: dict[str, object] = {}
    exec(text, functions)
    torch.manual_seed(5)
    random.seed(5)
    numpy.random.seed(5)
    got, got_form = flatten(functions["get_inputs"]())  # type: ignore[operator]
    expected, expected_form = flatten(open_reference(task).inputs(5))
    assert got_form == expected_form
    for a, b in zip(got, expected, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)
    assert functions["get_init_inputs"]() == [[3], {"bias": None}]  # type: ignore[operator]


def test_inputs_text_is_none_without_command_line_options(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE + "def get_inputs(): return []\n")
    assert inputs_text(load_task(f"{tmp_path / 'net.py'}:Net", device="cpu")) is None
