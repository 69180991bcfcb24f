"""Measurement and cache of a device's ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cuagent.measure.roofline import ceilings as measured
from cuagent.measure.roofline.ceilings import Ceilings, ceilings
from cuagent.task.task import Device


def check(device: Device, folder: Path, copy: float, fp32: float) -> Ceilings:
    first = ceilings(device, cache=folder)
    assert first.copy > copy
    assert first.fp32 > fp32
    with pytest.MonkeyPatch.context() as patch:
        for measurement in ("_measure_cpu", "_measure_cuda"):
            patch.delattr(measured, measurement)
        assert ceilings(device, cache=folder) == first
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


def test_ceilings_are_measured_alone_and_once_for_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements, waits = list[str](), list[str]()

    def measure(name: str) -> Ceilings:
        assert len(waits) == len(measurements) + 1, "measured beside other processes"
        measurements.append(name)
        return Ceilings(name, 1e9 + len(measurements), 1e12, 0.0, 0.0)

    @contextmanager
    def alone() -> Iterator[None]:
        waits.append("waited")
        yield

    monkeypatch.setattr(measured, "_measure_cuda", measure)
    monkeypatch.setattr(measured, "describe", lambda _: "a GPU")
    find = partial(ceilings, Device.CUDA, cache=tmp_path, alone=alone)
    first = find()
    assert find() == first
    assert len(waits) == 1, "the device was taken to read the cache"
    second = find(remeasure=True, recent_s=60.0)
    assert second.copy > first.copy
    assert find(remeasure=True, recent_s=60.0) == second, "another task asked shortly before"
    assert len(waits) == 2
    assert find(remeasure=True).copy > second.copy, "a suspect time needs a new measurement"
    assert len(waits) == len(measurements) == 3


def test_ceilings_that_another_process_measured_meanwhile_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "describe", lambda _: "a GPU")
    monkeypatch.setattr(measured, "_measure_cuda", lambda name: Ceilings(name, 1e9, 1e12, 0.0, 0.0))

    @contextmanager
    def while_another_measures() -> Iterator[None]:
        found = ceilings(Device.CUDA, cache=tmp_path)
        monkeypatch.delattr(measured, "_measure_cuda")
        yield
        assert found.copy == 1e9

    assert ceilings(Device.CUDA, cache=tmp_path, alone=while_another_measures).copy == 1e9
