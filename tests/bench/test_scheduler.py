"""Run many problems: no failure ends the benchmark, finished problems are skipped.

The engine here returns given records; `test_bench.py` runs real problems.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from make_tasks import write_task
from records import solved, unsolved

from cuagent.bench import engines
from cuagent.bench.engines import Cancelled, EngineLost, LocalEngine, Report, TimeLimit, _why
from cuagent.bench.memory import Size
from cuagent.bench.order import DEFERRED, WAITING_FOR_MEMORY, BenchSettings, Order
from cuagent.bench.problems import Problem
from cuagent.bench.results import Record, opened_for_writing, read_results
from cuagent.bench.scheduler import (
    Finished,
    Slots,
    is_for_memory,
    orders_for,
    run_orders,
    slots_for,
)
from cuagent.task.memory import shortage

pytestmark = pytest.mark.slow


GIB = 1 << 30
SIZES = {
    name: Size(call, 80 * GIB, between, inputs=call)
    for name, call, between in (
        ("whole", 40 * GIB, 0),
        ("half", GIB // 2, 2 * GIB),
        ("small", 1, 0),
    )
}
"""Sizes of problems by name."""
SHOWN = {name: asdict(size) for name, size in SIZES.items()}


class Given:
    """An engine that runs nothing: the name of each problem determines its result."""

    def __init__(self) -> None:
        self.asked: list[Order] = []
        self.together = 0
        self._running = 0
        self._lock = threading.Lock()
        self.cancelled = threading.Event()

    def run(self, order: Order, report: Report) -> Record:
        with self._lock:
            self.asked.append(order)
            self._running += 1
            self.together = max(self.together, self._running)
        report({"phase": "at work"})
        try:
            return self._result(order)
        finally:
            with self._lock:
                self._running -= 1

    def _result(self, order: Order) -> Record:
        if order.sizes_only:
            size = SIZES.get(order.problem)
            return {"size": size and asdict(size)}
        runs = [o.problem for o in self.asked if not o.sizes_only]
        first = runs.count(order.problem) == 1
        if "dies" in order.problem:
            raise EngineLost("its process died with signal SIGSEGV")
        if "hangs" in order.problem:
            self.cancelled.wait(30)
            raise Cancelled
        if "whole" in order.problem and order.may_defer:
            return unsolved(order.problem, DEFERRED, key=order.key)
        if "large" in order.problem and first:
            return unsolved(order.problem, reason="CUDA out of memory", key=order.key)
        return solved(order.problem, key=order.key)

    def cancel(self) -> None:
        self.cancelled.set()


def orders(tmp_path: Path, *names: str) -> list[Order]:
    paths = [write_task(tmp_path / "tasks" / f"{name}.py", "return x.relu()") for name in names]
    problems = [Problem(path.stem, path, "tasks") for path in paths]
    return orders_for(problems, BenchSettings(), "a device", tmp_path)


def test_a_dead_process_is_a_result_with_its_reason(tmp_path: Path) -> None:
    with opened_for_writing(tmp_path) as results:
        run_orders(
            orders(tmp_path, "a", "dies", "b"),
            Given(),
            Slots((None, None)),
            results,
            lambda _: None,
        )
    found = {r["problem"]: (r["status"], r["reason"]) for r in read_results(tmp_path)}
    assert found["dies"] == ("failed", "its process died with signal SIGSEGV")
    assert found["a"][0] == found["b"][0] == "kernel"


def test_what_is_done_is_skipped_unless_the_task_changes(tmp_path: Path) -> None:
    asked = orders(tmp_path, "a", "b")
    with opened_for_writing(tmp_path) as results:
        run_orders(asked, Given(), Slots((None,)), results, lambda _: None)
    write_task(tmp_path / "tasks/b.py", "return x.relu() * 2")
    again, seen = Given(), list[Finished]()
    changed = orders_for(
        [Problem(o.problem, Path(o.path), "tasks") for o in asked],
        BenchSettings(),
        "a device",
        tmp_path,
    )
    with opened_for_writing(tmp_path) as results:
        run_orders(
            changed,
            again,
            Slots((None,)),
            results,
            lambda event: seen.append(event) if isinstance(event, Finished) else None,
        )
    assert [order.problem for order in again.asked] == ["b"]
    assert [(f.record["problem"], f.earlier) for f in seen] == [("a", True), ("b", False)]


def test_result_of_another_version_counts_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuagent.bench.results.tool_version", lambda: "1.0")
    asked = orders(tmp_path, "a", "b")
    with opened_for_writing(tmp_path) as results:
        run_orders(asked, Given(), Slots((None,)), results, lambda _: None)
        versions = results.versions
    monkeypatch.setattr("cuagent.bench.results.tool_version", lambda: "2.0")
    write_task(tmp_path / "tasks/b.py", "return x.relu() * 2")
    problems = [Problem(o.problem, Path(o.path), "tasks") for o in asked]
    for also, expected in ((versions, {"b"}), ([], {"a", "b"})):
        again = Given()
        changed = orders_for(problems, BenchSettings(), "a device", tmp_path, versions=also)
        with opened_for_writing(tmp_path / f"{len(also)}") as results:
            results.records = list(read_results(tmp_path))
            run_orders(changed, again, Slots((None,)), results, lambda _: None)
        assert {order.problem for order in again.asked} == expected
    assert all(Order.from_json(order.to_json()) == order for order in changed)


def test_a_problem_out_of_memory_runs_again_with_its_gpu_to_itself(tmp_path: Path) -> None:
    engine = Given()
    slots = Slots(("0", "0", "0"))
    with opened_for_writing(tmp_path) as results:
        run_orders(
            orders(tmp_path, "a", "large1", "b", "large2"), engine, slots, results, lambda _: None
        )
    runs = [o for o in engine.asked if not o.sizes_only]
    assert [o.alone for o in runs if o.problem == "large1"] == [False, True]
    assert [o.alone for o in runs if o.problem == "a"] == [False]
    found = {r["problem"]: r["status"] for r in read_results(tmp_path)}
    assert found == dict.fromkeys(("a", "b", "large1", "large2"), "kernel")


def test_problems_that_need_most_memory_start_first_on_gpus_of_this_machine(
    tmp_path: Path,
) -> None:
    engine, slots = Given(), Slots(("0", "0"))
    with opened_for_writing(tmp_path) as results:
        asked = orders(tmp_path, "small", "whole", "half", "unknown")
        run_orders(asked, engine, slots, results, lambda _: None)
    assert {r["problem"] for r in read_results(tmp_path)} == {"small", "whole", "half", "unknown"}
    runs = [o for o in engine.asked if not o.sizes_only]
    assert len(engine.asked) == 2 * len(runs) == 8
    assert [o.problem for o in runs][:2] == ["whole", "half"]
    assert [o.problem for o in runs if o.alone] == ["whole"]
    assert {o.problem: o.size for o in runs} == SHOWN | {"unknown": None}


def test_problems_that_need_most_memory_come_last_on_a_cluster(tmp_path: Path) -> None:
    engine, slots = Given(), Slots((None, None))
    names = ("whole1", "a", "whole2 and large", "b")
    with opened_for_writing(tmp_path) as results:
        run_orders(orders(tmp_path, *names), engine, slots, results, lambda _: None)
    found = [(r["problem"], r["status"]) for r in read_results(tmp_path)]
    assert sorted(found) == sorted((name, "kernel") for name in names)
    asked = [order.problem for order in engine.asked]
    again = next(n for n, name in enumerate(asked) if name in asked[:n])
    # The other slot may have taken its problem, but not asked for it yet.
    assert again >= len(names) - 1
    assert not any(o.sizes_only for o in engine.asked)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has"),
        RuntimeError("can't allocate memory: you tried to allocate 4096 bytes"),
        MemoryError(),
    ],
)
def test_message_on_a_lack_of_memory_is_known(error: BaseException) -> None:
    assert is_for_memory(unsolved("a", reason=f"model.py:3: Model.forward {shortage(error)}"))


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    engine = Given()

    def interrupt(event: object) -> None:
        if isinstance(event, Finished):
            raise KeyboardInterrupt

    with opened_for_writing(tmp_path) as results, pytest.raises(KeyboardInterrupt):
        run_orders(orders(tmp_path, "a", "hangs"), engine, Slots((None, None)), results, interrupt)
    assert [r["problem"] for r in read_results(tmp_path)] == ["a"]


def test_slots_share_gpus_and_divide_processors() -> None:
    assert slots_for("cuda", 4, 2).gpus == ("0", "1", "0", "1")
    assert slots_for("cuda", 4, 2).share_gpus
    assert not slots_for("cuda", 2, 2).share_gpus
    assert not slots_for("cpu", 2, 1).share_gpus
    one = slots_for("cpu", None, 1)
    assert (len(one), one.cores) == (1, ())
    two = slots_for("cpu", 2, 1)
    used = [core for cores in two.cores for core in cores]
    assert len(used) == len(set(used))


def test_time_of_a_problem_ends_but_not_while_it_waits_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ENDING_AFTER_S", 0.0)
    order = orders(tmp_path, "a")[0]
    order = replace(order, settings=replace(order.settings, max_time_s=0.3))
    killed = threading.Event()
    limit = TimeLimit(order, killed.set)
    limit.observe({"phase": WAITING_FOR_MEMORY})
    assert not killed.wait(0.6)
    limit.observe({"phase": "certifying"})
    limit.observe({"phase": "opening"})
    assert killed.wait(10)
    assert limit.over

    killed.clear()
    ended = TimeLimit(order, killed.set)
    ended.stop()
    assert not killed.wait(0.6)
    assert not ended.over


def test_a_process_that_was_killed_states_a_remedy(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("last words\n")
    killed = _why(-signal.SIGKILL, log)
    assert "use fewer --jobs" in killed
    assert killed.endswith(": last words")
    assert is_for_memory(unsolved("a", reason=killed))
    assert "--jobs" not in _why(-signal.SIGSEGV, log)


def test_log_of_a_process_is_not_written_through_a_link(tmp_path: Path) -> None:
    order = orders(tmp_path, "a")[0]
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").symlink_to(tmp_path / "victim")
    engine = LocalEngine(tmp_path / "logs")
    engine.cancel()
    with pytest.raises(Cancelled):
        engine.run(order, lambda _: None)
    assert (tmp_path / "victim").read_text() == "mine"
