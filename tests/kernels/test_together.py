"""Triton kernels are compiled in parallel, once, and errors are left to their launches."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Executor
from types import SimpleNamespace

import pytest
import torch

from cuagent.kernels import compile_together


class Mode:
    """Stands for Triton's AsyncCompileMode."""

    def __init__(self, pool: Executor, *, ignore_errors: bool) -> None:
        assert ignore_errors
        self.pool = pool

    def __enter__(self) -> Mode:
        pools.append(self.pool)
        return self

    def __exit__(self, *_: object) -> None:
        pools.clear()


pools: list[Executor] = []


def test_warm_ups_run_in_one_pool_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=Mode))
    threads = []

    def warm_ups() -> None:
        threads.append(pools[0].submit(threading.get_ident).result())

    for _ in range(3):
        compile_together(warm_ups)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_errors_are_left_to_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=Mode))

    def warm_ups() -> None:
        raise RuntimeError("does not compile")

    compile_together(warm_ups)


def test_versions_of_triton_without_parallel_compilation_compile_at_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    calls: list[int] = []
    compile_together(lambda: calls.append(1))
    assert not calls


@pytest.mark.slow
def test_graph_of_torch_compile_is_not_broken() -> None:
    def warm_ups() -> None:
        raise AssertionError

    def forward(x: torch.Tensor) -> torch.Tensor:
        compile_together(warm_ups)
        return x + 1

    compiled = torch.compile(forward, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2)).tolist() == [1, 1]


@pytest.mark.gpu
def test_launch_finds_the_kernel_that_was_compiled_ahead(tmp_path, monkeypatch) -> None:
    import triton

    (tmp_path / "scaled.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\n"
        "def scale(out, x, SIZE: tl.constexpr):\n    k = tl.arange(0, SIZE)\n"
        "    tl.store(out + k, tl.load(x + k) * 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from scaled import scale  # type: ignore[import-not-found]

    made: list[object] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **k: made.append(k))
    compile_together(lambda: scale.warmup(torch.float32, torch.float32, 64, num_warps=2, grid=(1,)))
    assert len(made) == 1
    x = torch.randn(64, device="cuda")
    out = torch.empty_like(x)
    scale[(1,)](out, x, 64, num_warps=2)
    assert len(made) == 1
    assert torch.equal(out, x * 2)
