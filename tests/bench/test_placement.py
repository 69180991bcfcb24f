"""Problems of several GPUs start where their memory is free, large ones first."""

from __future__ import annotations

import threading

import pytest

from cuagent.bench import placement
from cuagent.bench.order import BenchSettings, Order
from cuagent.bench.placement import Queue


def order(name: str) -> Order:
    return Order(name, f"{name}.py", "tasks", "", BenchSettings(), "key", "runs")


def names(queue: Queue, *gpus: str) -> list[str]:
    """Take one order for each GPU in the given order; return their names."""
    found = [queue.take(gpu) for gpu in gpus]
    return [each.problem for each in found if each is not None]


def sized(**shares: float) -> Queue:
    queue = Queue(unsized=shares)
    for name, share in shares.items():
        queue.add(order(name), share)
    return queue


def taking(queue: Queue, gpu: str) -> tuple[threading.Thread, list[Order | None]]:
    """Let another thread take an order; return the thread and the list that it adds the order
    to."""
    taken: list[Order | None] = []
    waits = threading.Thread(target=lambda: taken.append(queue.take(gpu)))
    waits.start()
    waits.join(0.2)
    return waits, taken


def test_large_problems_start_first_and_small_ones_use_what_is_left() -> None:
    queue = sized(small=0.1, half=0.5, whole=1.0, most=0.8, tiny=0.05)
    assert names(queue, "0", "1", "1", "1") == ["whole", "most", "small", "tiny"]


def test_a_slot_waits_until_the_memory_of_its_gpu_is_free() -> None:
    queue = sized(a=0.6, b=0.6)
    first = queue.take("0")
    assert first is not None
    waits, taken = taking(queue, "0")
    assert not taken
    queue.ended(first)
    waits.join(10)
    assert [each.problem for each in taken if each] == ["b"]


def test_an_order_without_a_place_on_one_gpu_is_left_to_another() -> None:
    queue = sized(a=0.6, b=0.6)
    assert names(queue, "0", "1") == ["a", "b"]
    assert queue.take("0") is None


def test_only_a_problem_that_needs_the_whole_memory_is_alone() -> None:
    queue = sized(whole=1.0, half=0.5)
    whole, half = queue.take("0"), queue.take("1")
    assert whole is not None
    assert half is not None
    assert whole.alone
    assert not half.alone


def test_slots_wait_until_all_sizes_are_known_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(unsized=["small", "large"])
    queue.add(order("small"), 0.1)
    waits, taken = taking(queue, "0")
    assert not taken
    queue.add(order("large"), 0.9)
    waits.join(10)
    assert [each.problem for each in taken if each] == ["large"]

    monkeypatch.setattr(placement, "SIZING_S", 0.1)
    queue = Queue(unsized=["small", "large"])
    queue.add(order("small"), 0.1)
    assert names(queue, "0") == ["small"]


def test_a_problem_that_runs_again_elsewhere_before_it_ended_keeps_its_memory() -> None:
    queue = sized(a=0.6, b=0.5)
    first = queue.take("0")
    assert first is not None
    queue.add(first, 1.0)
    again = queue.take("1")
    assert again is not None
    assert again.alone
    queue.ended(first)
    assert names(queue, "0") == ["b"]
    queue.add(order("c"), 0.5)
    waits, taken = taking(queue, "1")
    assert not taken
    queue.ended(again)
    waits.join(10)
    assert [each.problem for each in taken if each] == ["c"]


def test_a_closed_queue_gives_no_order() -> None:
    queue = sized(a=0.6, b=0.6)
    assert names(queue, "0") == ["a"]
    queue.close()
    assert queue.take("0") is queue.take("1") is None


def test_orders_without_shares_keep_their_order() -> None:
    queue = Queue(order(name) for name in "cab")
    assert names(queue, "0", "0", "0") == ["c", "a", "b"]
    assert queue.take("0") is None
