"""Interception of operators, without an import of torch's compiler."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from cuagent.verify.trace.hooks import intercept_operators


class NoCompiler:
    """Import hook that fails on torch._dynamo."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        assert name != "torch._dynamo", "imported, which takes a second"


def test_operators_are_intercepted_without_importing_torch_dynamo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoCompiler(), *sys.meta_path])
    seen = []

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        seen.append(function.overloadpacket.__name__)
        return -function(*args, **kwargs)

    with intercept_operators(call):
        result = torch.ones(3).exp()
    assert torch.equal(result, -torch.ones(3).neg().exp())
    assert seen[-2:] == ["ones", "exp"]
