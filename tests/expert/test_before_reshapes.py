"""An activation behind a reshape of a depthwise convolution's result is part of its kernel."""

from __future__ import annotations

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.l = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Linear(12, 12)
    def forward(self, x):
        h = self.c(x).flatten(2)
        return {body}
def get_inputs(): return [torch.randn(2, 12, 6, 10)]
def get_init_inputs(): return []
"""
BODIES = {
    "one operation": "F.gelu(h)",
    "several": "torch.exp(h * 2) * h.sigmoid()",
}


@pytest.mark.parametrize("name", BODIES)
def test_operations_after_a_reshape_are_in_the_kernel_before_it(make, name):
    made = make(TEXT.format(body=BODIES[name]), "Model")
    assert len(made.candidate.kernels) == 1, made.candidate.notes
    assert_agrees(made)


def test_a_broadcast_operand_stays_behind_the_reshape(make):
    assert_agrees(make(TEXT.format(body="h * h.amax(2, True) + x.flatten(2)"), "Model"))
