"""Measurement and cache of a device's ceilings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cuagent.measure.roofline import ceilings as measured
from cuagent.measure.roofline.ceilings import Ceilings, ceilings
from cuagent.task.task import Device


def check(device: Device, folder: Path, copy: float, fp32: float) -> Ceilings:
    first = ceilings(device, cache=folder)
    assert first.copy > copy
    assert first.fp32 > fp32
    start = time.perf_counter()
    assert ceilings(device, cache=folder) == first
    assert time.perf_counter() - start < 0.1
    return first


@pytest.mark.slow
def test_cpu_ceilings_are_measured_once_and_again_after_damage(tmp_path: Path) -> None:
    first = check(Device.CPU, tmp_path, copy=5e8, fp32=1e9)
    assert first.rate("tf32") == first.fp32
    for file in tmp_path.iterdir():
        file.write_text('{"copy": 1')
    assert ceilings(Device.CPU, cache=tmp_path).copy > 1


@pytest.mark.slow
def test_streaming_stores_count_for_the_copy_rate_of_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_copy_rate", lambda *_: 1.0)
    assert ceilings(Device.CPU, cache=tmp_path).copy > 5e8


@pytest.mark.slow
def test_without_a_compiler_the_ceiling_is_torchs_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(measured, "_copy_rate", lambda *_: 1.0)
    assert ceilings(Device.CPU, cache=tmp_path).copy == 1.0


@pytest.mark.gpu
def test_gpu_ceilings_rise_from_fp32_to_bf16(tmp_path: Path) -> None:
    first = check(Device.CUDA, tmp_path, copy=1e11, fp32=1e12)
    assert first.bf16 > first.fp32
    assert first.cache_bytes > 1 << 20
