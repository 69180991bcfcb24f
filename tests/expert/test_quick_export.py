"""Captures under `quick_export` equal those of torch, and leave what torch leaves."""

from __future__ import annotations

import pytest
import torch
from quick_export import NAME, kernels_of, remembering
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

from cuagent.expert.capture.export import capture

# Softmax and layer_norm stay whole, flatten is decomposed.
MODEL = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Softmax(-1), torch.nn.Flatten())


def captured() -> tuple[list[str], object, set[object]]:
    nodes = capture(MODEL.eval(), [torch.ones(2, 3, 4)]).nodes
    operators = [op for name in dir(torch.ops.aten) for op in overloads(name)]
    return [str(node.target) for node in nodes], kernels_of(operators), set(op_implementations_dict)


def overloads(name: str) -> list[object]:
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, each) for each in getattr(packet, "overloads", list)()]


@pytest.mark.skipif(not hasattr(exported_program, NAME), reason="another version of torch")
def test_remembered_registrations_give_the_same_graph_and_are_removed(monkeypatch) -> None:
    override = getattr(exported_program, NAME)
    tables = []

    def counted(table):
        tables.append(len(table))
        return override(table)

    captured()  # the first capture in a process registers and removes more
    monkeypatch.setattr(exported_program, NAME, counted)
    expected = captured()
    monkeypatch.setattr(exported_program, NAME, remembering(counted))
    assert captured() == expected
    tables.clear()
    assert captured() == expected
    assert captured() == expected
    assert not tables
