"""Objects in the arguments and results of a call: compared, rebuilt and changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuagent.package.callform import CallForm


class Box:
    def __init__(self, kept: torch.Tensor, scale: float) -> None:
        self.kept, self.scale = kept, scale


class Other(Box):
    pass


class Layers:
    def __init__(self, *layers: Any) -> None:
        self.layers = list(layers)
        self.limit = None


def forward(self: Any, x: Any, box: Any = None) -> None:
    """Give the names of the parameters."""


BOX = {"object": 0, "items": {"kept": {"tensor": 1}, "scale": {"const": 2.0}}}
CALL: dict[str, Any] = {
    "inputs": 2,
    "positional": [{"tensor": 0}],
    "named": {"box": BOX},
    "result": {"tuple": [{"output": 0}, {"argument": 1}, {"const": None}, {"tensor": 0}]},
    "effects": [[1, [["attr", "kept"]], {"output": 1}]],
}
CACHE = {"cache": 1, "items": {"limit": {"const": None}}, "layer": BOX}
CACHED = CALL | {
    "named": {"box": CACHE},
    "effects": [[1, [["layer"], ["attr", "kept"]], {"output": 1}]],
}
KINDS = (Box, Layers)
X, KEPT = torch.ones(2), torch.zeros(3)


@pytest.mark.parametrize("by_name", [True, False])
def test_result_and_arguments_get_the_new_tensors(by_name: bool) -> None:
    form = CallForm(CALL, forward, KINDS)
    box = Box(KEPT, 2.0)
    args, named = ((X,), {"box": box}) if by_name else ((X, box), {})
    given = form.inputs(args, named)
    assert given is not None
    assert given[0] is X
    assert given[1] is KEPT
    new, changed = torch.ones(4), torch.ones(5)
    result = form.result([new, changed], given, args, named)
    assert (result[0] is new, result[1] is box, result[2], result[3] is X) == (
        True,
        True,
        None,
        True,
    )
    assert box.kept is changed


def test_a_tensor_that_is_changed_in_place_keeps_its_identity() -> None:
    form = CallForm(CALL | {"effects": [], "copies": [[1, 1]]}, forward, KINDS)
    box = Box(torch.zeros(3), 2.0)
    kept, named = box.kept, {"box": box}
    given = form.inputs((X,), named)
    assert given is not None
    saved = form.saved(given)
    form.result([X, torch.ones(3)], given, (X,), named)
    assert box.kept is kept
    assert kept.tolist() == [1, 1, 1]
    assert saved[0] is X
    assert saved[1].tolist() == [0, 0, 0]
    assert form.outputs((X, box, None, X), given, (X,), named)[1] is kept


def altered(**changes: Any) -> Box:
    box = Box(KEPT, 2.0)
    box.__dict__.update(changes)
    return box


@pytest.mark.parametrize(
    "box",
    [Other(KEPT, 2.0), altered(scale=2), altered(kept=None), altered(more=1), None, {"kept": KEPT}],
    ids=["subclass", "constant", "no tensor", "another attribute", "none", "dict"],
)
def test_another_object_is_another_call(box: Any) -> None:
    assert CallForm(CALL, forward, KINDS).inputs((X,), {"box": box}) is None


def test_a_module_uses_its_own_layer_of_a_cache() -> None:
    form = CallForm(CACHED, forward, KINDS, layer=1)
    first, own = Box(X, 5.0), Box(KEPT, 2.0)
    named = {"box": Layers(first, own, "not read")}
    given = form.inputs((X,), named)
    assert given is not None
    assert given[1] is KEPT
    form.result([X, X], given, (X,), named)
    assert own.kept is X
    assert first.scale == 5.0
    assert form.inputs((X,), {"box": Layers(own)}) is None
    args, made = form.arguments([X, KEPT])
    assert args[0] is X
    assert made["box"].layers[0] is None
    assert made["box"].layers[1].kept is KEPT
    assert form.outputs((X, made["box"], None, X), [X, KEPT], args, made) == [X, KEPT]


def test_a_list_that_grows_keeps_its_identity() -> None:
    call = CALL | {
        "named": {"box": {"list": [{"tensor": 1}]}},
        "effects": [[1, [], {"list": [{"tensor": 1}, {"output": 1}]}]],
    }
    form = CallForm(call, forward)
    held = [KEPT]
    given = form.inputs((X,), {"box": held})
    assert given is not None
    assert form.result([X, X], given, (X,), {"box": held})[1] is held
    assert len(held) == 2
    assert held[1] is X
