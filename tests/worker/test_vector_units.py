"""Tests of the note that this machine's compiler can use all vector instructions."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cuagent.worker import vector_units
from cuagent.worker.vector_units import VARIABLE, all_passed, note_passed, skip_tests


def torch_with(monkeypatch: pytest.MonkeyPatch, passed: list[str], tested: int = 1) -> None:
    """Stand in for torch's module on a processor with avx2 and avx512."""

    def valid() -> list[str]:
        return passed

    valid.cache_info = lambda: SimpleNamespace(currsize=tested)  # type: ignore[attr-defined]
    module = SimpleNamespace(
        valid_vec_isa_list=valid,
        x86_isa_checker=lambda: ["avx2", "avx512"],
        supported_vec_isa_list=["avx512 amx_tile", "avx512", "avx2"],
    )
    monkeypatch.setitem(sys.modules, "torch._inductor.cpu_vec_isa", module)


def test_note_is_written_if_all_tests_passed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch_with(monkeypatch, ["avx512", "avx2"])
    assert not all_passed(tmp_path)
    note_passed()
    assert all_passed(tmp_path)
    monkeypatch.setattr(vector_units, "_machine", lambda: {"torch": "another"})
    assert not all_passed(tmp_path)


@pytest.mark.parametrize(("passed", "tested"), [(["avx2"], 1), (["avx512", "avx2"], 0), ([], 1)])
def test_note_is_not_written_otherwise(tmp_path, monkeypatch, passed, tested) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch_with(monkeypatch, passed, tested)
    note_passed()
    assert not all_passed(tmp_path)


def test_tests_are_skipped_only_if_the_environment_says_so(monkeypatch) -> None:
    config = SimpleNamespace(cpp=SimpleNamespace(vec_isa_ok=None))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    monkeypatch.delenv(VARIABLE, raising=False)
    skip_tests()
    assert config.cpp.vec_isa_ok is None
    monkeypatch.setenv(VARIABLE, "1")
    skip_tests()
    assert config.cpp.vec_isa_ok is True
