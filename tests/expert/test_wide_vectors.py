"""Generated C++ asks for vectors of 512 bits where the processor has them at its full clock."""

from __future__ import annotations

import platform

import pytest

from cuagent.expert import vectors
from cuagent.kernels.toolchain import _expanded


@pytest.mark.parametrize(
    ("features", "wide"),
    [("fma avx2", False), ("avx2 avx512f avx512vl", False), ("avx512f avx512_vbmi2", True)],
)
def test_processor_with_wide_vectors_is_known_by_its_features(tmp_path, features, wide):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name : 1\nflags : fpu {features}\n")
    assert vectors.has_wide_vectors(cpuinfo) == wide


def test_system_without_a_list_of_features_has_no_wide_vectors(tmp_path):
    assert not vectors.has_wide_vectors(tmp_path / "none")


@pytest.mark.parametrize("wide", [True, False])
def test_only_cpp_kernels_ask_for_wide_vectors(monkeypatch, wide):
    monkeypatch.setattr(vectors, "has_wide_vectors", lambda: wide)
    asked = vectors.with_wide_vectors("kernels/a.cpp", "int a;\n")
    assert asked == (vectors.WIDE if wide else "") + "int a;\n"
    assert vectors.with_wide_vectors("kernels/a.cu", "int a;\n") == "int a;\n"


@pytest.mark.parametrize(("machine", "kept"), [("x86_64", True), ("aarch64", False)])
def test_width_of_vectors_is_dropped_where_compilers_do_not_know_it(monkeypatch, machine, kept):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    flag = "-mprefer-vector-width=512"
    assert _expanded(flag, "g++") == ((flag,) if kept else ())
    assert _expanded("-funroll-loops", "g++") == ("-funroll-loops",)
