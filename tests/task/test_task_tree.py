"""Tests of `flatten` and `unflatten`, and of the spec as JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import torch

from cuagent.task import TreeError, flatten, unflatten


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


X, Y = torch.zeros(2), torch.ones(3)


@pytest.mark.parametrize(
    "tree",
    [X, [X, Y], (X, [Y, None], {"a": X, "b": (Y,)}), (), None, [1, 2.5, True, "s"], {"n": {}}],
)
def test_unflatten_inverts_flatten(tree: Any) -> None:
    leaves, spec = flatten(tree)
    assert repr(unflatten(leaves, json.loads(json.dumps(spec)))) == repr(tree)


def test_named_tuples_keep_their_fields() -> None:
    leaves, spec = flatten(Pair(X, [Y]))
    again = unflatten(leaves, json.loads(json.dumps(spec)))
    assert again.first is X
    assert again.second[0] is Y


def test_result_of_torch_max_is_a_tuple() -> None:
    leaves, spec = flatten(torch.max(torch.rand(3, 4), dim=1))
    assert (len(leaves), spec["kind"]) == (2, "tuple")


def test_dict_order_does_not_change_the_spec() -> None:
    assert flatten({"a": X, "b": 1})[1] == flatten({"b": 1, "a": X})[1]
    assert flatten({"a": X, "b": 1})[1] != flatten({"a": X, "c": 1})[1]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ([X, {"x": {X}}], "output[1]['x'] is a set"),
        (torch.float32, "output is a dtype"),
        ({(1, 2): X}, "keys that are neither"),
    ],
)
def test_value_that_is_not_a_tree_is_named(tree: Any, says: str) -> None:
    with pytest.raises(TreeError) as caught:
        flatten(tree, "output")
    assert says in str(caught.value)


def test_deep_nesting_is_rejected() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TreeError, match="deep"):
        flatten(loop)


def test_count_of_leaves_is_checked() -> None:
    with pytest.raises(TreeError, match="1 tensors for a tree of 2"):
        unflatten([X], flatten([X, Y])[1])
