"""Expressions that read parameters: quick ones through `_modules` where they mean the same."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]
from torch import nn

from cuagent.expert.capture.subject import attribute_of
from cuagent.expert.values import _quick

TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Tanh()) for _ in range(2)])
        self.named = nn.ModuleDict({"0": nn.LayerNorm(8), "b": nn.LayerNorm(8)})
        self.last = nn.ParameterList([torch.ones(8)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.named["b"](self.named["0"](x)).exp() * self.last[0]
def get_inputs(): return [torch.randn(5, 8)]
def get_init_inputs(): return []
"""


def test_parameters_are_read_through_modules(make):
    made = make(TEXT, "Model")
    forward = made.candidate.files["model_new.py"].rpartition("def forward")[2]
    assert "self._modules['layers']._modules['1']._modules['0'].weight" in forward
    assert "self._modules['named']._modules['b'].weight" in forward
    assert_agrees(made)


@pytest.mark.parametrize(
    ("name", "quick"),
    [
        ("a.weight", "self._modules['a'].weight"),
        ("a.0.b.1.bias", "self._modules['a']._modules['0']._modules['b']._modules['1'].bias"),
        ("weight", "self.weight"),
        ("d.0.weight", None),  # `self.d` has no integer indices
        ("list.0", None),
    ],
)
def test_other_expressions_stay(name, quick):
    model = nn.Module()
    model.a = nn.Sequential(nn.Module())
    model.a[0].b = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.d = nn.ModuleDict({"0": nn.Linear(2, 2)})
    expression = attribute_of(model)(name)
    assert _quick(name, expression) == (quick or expression)


SLICED = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Tanh(), nn.LayerNorm(8)
        whole = nn.Sequential(*layers)
        self.part = whole[2:]
    def forward(self, x):
        return self.part(x).exp()
def get_inputs(): return [torch.randn(5, 8)]
def get_init_inputs(): return []
"""


def test_a_slice_of_a_sequential_keeps_the_names_of_the_whole_one(make):
    made = make(SLICED, "Model")
    assert "self.part[" not in made.candidate.files["model_new.py"]
    assert_agrees(made)
