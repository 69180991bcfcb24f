"""Operators that stay calls of torch if no kernel can compute a group."""

from __future__ import annotations

from cuagent.expert import plan
from cuagent.expert.graph.storage import NestError

TEXT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(96)
    def forward(self, x, y):
        return self.norm(torch.cat([x, y], 1).relu() + 1)
def get_inputs(): return [torch.randn(512, 48), torch.randn(512, 48)]
def get_init_inputs(): return []
"""


def test_norm_of_a_concatenation_that_is_no_part_of_its_kernel_stays_a_kernel(
    generate, monkeypatch
):
    call = plan.group_call

    def without_joins(name, group, *rest):
        if group.reduced and any(n.origin.startswith("cat") for n in group.nodes):
            raise NestError("the parts have different orders")
        return call(name, group, *rest)

    monkeypatch.setattr(plan, "group_call", without_joins)
    made = generate(TEXT)
    assert made is not None
    assert any("layer_norm" in name for name in made.kernels)
    assert "aten.cat." in made.files["model_new.py"]
