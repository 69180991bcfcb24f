"""Calls that an earlier call was checked for."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from blocks import X, close, ran
from torch import nn

from cuagent.package.seen import LARGEST, Seen

A, B = torch.randn(4, 8), torch.randn(4, 8)
OTHERS: dict[str, tuple[Any, ...]] = {
    "shape": (torch.randn(4, 9), B),
    "strides": (torch.randn(8, 4).t(), B),
    "dtype": (A.double(), B),
    "negated": (torch._neg_view(A), B),
    "conjugated": (torch.randn(4, 8, dtype=torch.complex64).conj(), B),
    "layout": (A.to_sparse(), B),
    "gradient": (A.clone().requires_grad_(), B),
    "class": (nn.Parameter(A.clone()), B),
    "device": (A.to("meta"), B),
    "alignment": (torch.randn(33)[1:].view(4, 8), B),
    "twice": (A, A),
    "no tensor": (1.0, B),
    "fewer": (A,),
    "more": (A, B, B),
    "none": (),
}


@pytest.fixture(params=[False, True], ids=["together", "by shape"])
def seen(request: pytest.FixtureRequest) -> Seen:
    found = Seen(by_shape=request.param)
    found.add((A, B), "kernel")
    return found


def test_an_equal_call_is_recognized(seen: Seen) -> None:
    assert seen.find((A, B)) == "kernel"
    assert seen.find((torch.randn(4, 8), torch.randn(4, 8))) == "kernel"
    seen.forget()
    assert seen.find((A, B)) is None


@pytest.mark.parametrize("name", OTHERS)
def test_another_call_is_not(seen: Seen, name: str) -> None:
    assert seen.find(OTHERS[name]) is None


def test_transforms_and_autocast_are_not_recognized(seen: Seen) -> None:
    with torch.autocast("cpu"):
        assert seen.find((A, B)) is None
    inside = []
    torch.vmap(lambda a: inside.append(seen.find((a, B))) or a)(A[None])
    assert inside == [None]


def test_guards_keep_no_tensor_and_are_few() -> None:
    found = Seen()
    tensor = torch.randn(4, 8)
    kept = weakref.ref(tensor)
    found.add((tensor,), "kernel")
    assert found.find((tensor,)) == "kernel"
    del tensor
    assert kept() is None
    for rows in range(5, 5 + LARGEST):
        found.add((torch.randn(rows, 8),), rows)
    assert found.find((torch.randn(5, 8),)) == 5
    assert found.find((torch.randn(4 + LARGEST, 8),)) is None


def test_a_call_that_differs_runs_the_original_after_many_that_fit(
    model: Any, original: Any, silent: None
) -> None:
    with torch.no_grad():
        for _ in range(3):
            close(model(X), original(X))
        assert ran(model) == 3
        for other in (torch._neg_view(X), X.t().contiguous().t(), X.double().float()[:2]):
            close(model(other), original(other))
        assert ran(model) == 3
        with torch.inference_mode():
            close(model(X.clone()), original(X))
        assert ran(model) == 4
        model[0].train()
        original.train()
        model(X)
        assert ran(model) == 4
