"""Compilers inside the sandbox work, and cannot read files outside of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cuagent.attempt import Attempt
from cuagent.build import build, render
from cuagent.sandbox import Tier, probe
from cuagent.task.task import Device


def test_gxx_compiles_inside_the_sandbox(tmp_path: Path):
    attempt = Attempt((("kernels/a.cpp", 'extern "C" void f(float* x) { x[0] = 1; }'),))
    result = build(attempt, Device.CPU, cache=tmp_path)
    assert result.ok, render(result)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_inside_the_sandbox(tmp_path: Path):
    text = (
        '__global__ void k(float* x) { *x = 1; }\nextern "C" void f(float* x) { k<<<1, 1>>>(x); }'
    )
    attempt = Attempt((("kernels/a.cu", text),))
    result = build(attempt, Device.CUDA, cache=tmp_path)
    assert result.ok, render(result)


def test_error_message_cannot_show_file_outside(tmp_path: Path):
    if probe() is Tier.NONE:
        pytest.skip("no isolation on this machine")
    secret = tmp_path / "secret.txt"
    secret.write_text("the_secret_word\n")
    attempt = Attempt((("kernels/a.cpp", f'#include "{secret}"\nextern "C" void f(int n) {{}}'),))
    result = build(attempt, Device.CPU, cache=tmp_path / "cache")
    assert not result.ok
    assert "the_secret_word" not in render(result)
