"""Batch sizes are found from counted work and timed calls, none of which is far too slow."""

from __future__ import annotations

import time

import pytest

from cuagent.synth.sizes import (
    CLIMB,
    PROBES,
    Cost,
    Prediction,
    climbed,
    fastest,
    predicted_batch,
)

RATE = 1e-5


def test_calls_grow_only_while_they_are_fast() -> None:
    asked: list[int] = []

    def call_s(batch: int) -> float:
        asked.append(batch)
        return RATE * batch

    assert climbed(10**6, 0.1, call_s) < 10**6
    assert RATE * max(asked) <= 0.1 * CLIMB
    assert climbed(300, 0.1, call_s) == 300


def test_prediction_is_kept_if_no_call_is_slow() -> None:
    assert climbed(10**6, 0.1, lambda batch: 1e-9 * batch) == 10**6


@pytest.mark.parametrize("inputs", [0, 1 << 20])
def test_inputs_count_for_the_memory_of_a_call(inputs: int) -> None:
    low, high = (Cost(100 * n, 10 * n, 0, 1, inputs * n, n) for n in PROBES)
    batch = predicted_batch(low, high, "cuda", "float32", 1.0, 1 << 30)
    assert batch * (inputs + 10) <= 1 << 30
    assert batch > (1 << 30) // (inputs + 10) // 2 or not inputs


def test_cost_at_a_batch_size_is_linear_in_the_probes() -> None:
    low, high = (Cost(100 * n, 10 * n + 3, 7, 5, 2 * n, n) for n in PROBES)
    assert Prediction(1, 1, low, high).at(1000) == Cost(100_000, 10_003, 7, 5, 2000, 1000)


def test_checks_are_estimated_to_need_several_copies() -> None:
    cost = Cost(0, 2 << 30, 0, 1, 1 << 30, 1 << 30)
    assert cost.checked("float32") > 6 << 30
    assert cost.checked("float16") >= cost.checked("float32")
    assert cost.compiled("float32") < cost.checked("float32")


def test_waiting_for_a_processor_does_not_count_on_a_cpu() -> None:
    waited = []

    def run() -> None:
        time.sleep(0.02)
        waited.append(sum(k * k for k in range(20000)))

    assert 0 < fastest(run, "cpu") < 0.01
    assert len(waited) > 1
