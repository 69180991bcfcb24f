"""Tests of the records that a single call keeps of its kernels."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cuagent.worker import single


def test_kernel_that_is_only_compiled_was_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        def run(self, *_: Any, **named: Any) -> str:
            return "compiled" if named["warmup"] else "launched"

    triton, runtime, jit = (ModuleType(n) for n in ("triton", "triton.runtime", "t.runtime.jit"))
    jit.JITFunction = JITFunction  # type: ignore[attr-defined]
    for name, module in (("triton", triton), ("triton.runtime", runtime)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    names = single._launched()
    kernel = SimpleNamespace(__name__="scale")
    run: Any = JITFunction.run
    assert run(kernel, 1, grid=(1,), warmup=True) == "compiled"
    assert names == set()
    assert run(kernel, 1, grid=(1,), warmup=False) == "launched"
    assert names == {"scale"}
