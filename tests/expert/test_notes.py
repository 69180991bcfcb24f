"""Lines that describe a candidate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agreement import Imported  # type: ignore[import-not-found]

from cuagent.expert.notes import kernel_notes, listed, shortened

NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(12))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) * (i + 1)
        return x

def get_inputs():
    return [torch.randn(1, 4, 8, 8)]

def get_init_inputs():
    return []
"""


def test_few_names_are_listed_and_many_are_counted_by_kind() -> None:
    assert listed(["conv2d", "batch_norm", "conv2d_1"]) == "conv2d, batch_norm, conv2d_1"
    many = [f"{kind}_{n}" for n in range(20) for kind in ("max_pool2d", "batch_norm")]
    assert listed(many) == "20 max_pool2d, 20 batch_norm"


def test_many_kernels_of_equal_operators_share_a_line() -> None:
    titles = {f"add_kernel{n}": f"conv2d_{n} -> add_{n} in one kernel" for n in range(7)}
    titles["relu_kernel"] = "relu_4 in one kernel"
    uses = dict.fromkeys(titles, 1) | {"add_kernel3": 5}
    assert kernel_notes(titles, uses) == [
        "add_kernel0 and 6 like it: conv2d -> add in one kernel, used 11 times",
        "relu_kernel: relu_4 in one kernel",
    ]
    few = {name: titles[name] for name in ("add_kernel0", "add_kernel3")}
    assert kernel_notes(few, uses) == [
        "add_kernel0: conv2d_0 -> add_0 in one kernel",
        "add_kernel3: conv2d_3 -> add_3 in one kernel, used 5 times",
    ]


def test_shortened_notes_say_how_many_are_left_out() -> None:
    notes = [f"note {n}" for n in range(9)]
    assert shortened(notes, 9) == notes
    assert shortened(notes, 4) == [*notes[:3], "and 6 more, in the docstring of ModelNew"]


@pytest.mark.slow
def test_the_notes_on_a_network_are_as_short_as_those_on_a_layer(
    make: Callable[..., Imported],
) -> None:
    notes = make(NETWORK, "Net").candidate.notes
    assert notes[0] == "merged into other operators: 12 conv2d, 12 batch_norm"
    assert len(notes) <= 3
    assert max(map(len, notes)) < 100
