"""Predict the throughput of a benchmark with several problems in flight on one device.

    python benchmarks/bench_flow_model.py docs/measurements/bench-h200-2026-11-26.jsonl \\
        --in-flight 8 --window 276 --ended 3.5

A discrete-event model of the device lock. A problem is a sequence of steps whose durations come
from the stages of a record: work on the processors, shared use of the device, exclusive use. A
timing waits until all that share the device have given way, and timings that wait go first
(`cuagent/device_lock.py`). Autotuning runs beside its problem and uses the device in bursts.

Records of a run that was stopped are of the quickest problems only. So a factor on the durations of
shared steps is fitted (`Settings.slower`), such that as many problems end in the window of the
measured run as ended there: `--ended` for each device.
Not covered: contention for processors, GPU and driver, which more problems in flight increase.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import mean
from typing import Any

Record = dict[str, Any]


class Use(StrEnum):
    """Use of the device by a step."""

    NONE = "none"
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True)
class Step:
    """Part of the work on a problem."""

    use: Use
    seconds: float
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """Work on one problem. The steps `beside` run at the same time as `first`; `last` follows
    both."""

    first: tuple[Step, ...]
    beside: tuple[Step, ...]
    last: tuple[Step, ...]


@dataclass(frozen=True)
class Settings:
    """Properties of cuagent that the model varies."""

    in_flight: int = 8
    give_way_s: float = 0.5
    """Mean seconds until a step that shares the device has given way. Half of it is a constant, the
    rest is exponentially distributed. The last of several steps decides."""
    rounds: int = 5
    """Rounds of a record timing."""
    rounds_at_once: int = 1
    """Rounds that share one exclusive use."""
    burst_s: float = 1.5
    """Seconds of one exclusive use by autotuning."""
    burst_share: float = 0.15
    """Share of autotuning's seconds in which it uses the device."""
    slower: float = 1.0
    """Factor on the durations of all steps that share the device."""
    compiles_early: bool = False
    """True if rungs compile while the task is certified and opened."""
    spared: tuple[str, ...] = ()
    """Stages left out."""


def plan_of(record: Record, settings: Settings) -> Plan:
    """Return the work on the problem of a record."""
    stages: dict[str, float] = record["stages"]
    attempts = record.get("attempts") or 0

    def step(use: Use, stage: str, parts: float = 1.0) -> list[Step]:
        seconds = stages.get(f"{stage}_s", 0.0) / max(parts, 1.0)
        if stage in settings.spared or not seconds:
            return []
        factor = settings.slower if use is Use.SHARED else 1.0
        return [Step(use, seconds * factor, stage)]

    is_timed = bool(stages.get("record_timing_s"))
    uses = -(-settings.rounds // settings.rounds_at_once) if is_timed else 0
    openings = 1 + attempts + uses
    opening = step(Use.SHARED, "opening_arms", openings)
    verdicts = attempts + is_timed
    opened = [*step(Use.SHARED, "certifying"), *step(Use.SHARED, "opening")]
    compiled = step(Use.NONE, "compiling_ahead")
    if settings.compiles_early:
        meanwhile = sum(one.seconds for one in opened)
        compiled = [replace(one, seconds=max(0.0, one.seconds - meanwhile)) for one in compiled]
    first = [
        *opened,
        *compiled,
        *opening,
        *step(Use.EXCLUSIVE, "ladder"),
        *step(Use.NONE, "generation"),
    ]
    for _ in range(attempts):
        first += step(Use.NONE, "building", attempts)
        first += step(Use.SHARED, "verifying", verdicts)
        first += [*opening, *step(Use.EXCLUSIVE, "quick_timing", attempts)]
    last = step(Use.EXCLUSIVE, "profiling")
    if is_timed:
        last += step(Use.SHARED, "verifying", verdicts)
    last += step(Use.SHARED, "sanitizing")
    for _ in range(uses):
        last += [*opening, *step(Use.EXCLUSIVE, "record_timing", uses)]
    return Plan(tuple(first), tuple(_tuning(stages, settings)), tuple(last))


def _tuning(stages: dict[str, float], settings: Settings) -> Iterator[Step]:
    seconds = stages.get("autotuning_s", 0.0)
    if not seconds or "autotuning" in settings.spared:
        return
    bursts = max(1, round(seconds * settings.burst_share / settings.burst_s))
    for _ in range(bursts):
        yield Step(Use.NONE, seconds * (1 - settings.burst_share) / bursts, "autotuning")
        yield Step(Use.EXCLUSIVE, seconds * settings.burst_share / bursts, "autotuning")


@dataclass
class Task:
    """Steps in progress; `then` is called at their end."""

    steps: list[Step]
    then: Callable[[], None]
    left: float = 0.0
    """Seconds of the current step that are left."""
    since: float = 0.0
    version: int = 0
    """Incremented when an event of this task no longer applies."""


@dataclass
class Device:
    """State of the device lock, and the time that each kind of use took."""

    running: list[Task] = field(default_factory=list)
    """Tasks that share the device now."""
    stopped: list[Task] = field(default_factory=list)
    """Tasks that wait to share it."""
    queue: list[Task] = field(default_factory=list)
    """Tasks that wait for the exclusive use, in order."""
    owner: Task | None = None
    asked: float = 0.0
    """Time at which the first of the queue began to wait for those that share."""
    draining_s: float = 0.0
    owned_s: float = 0.0
    uses: int = 0


class Model:
    """Simulation of problems on one device."""

    def __init__(self, plans: Iterator[Plan], settings: Settings, seed: int) -> None:
        self.now = 0.0
        self.device = Device()
        self.ended: list[float] = []
        """Seconds that each ended problem took, in the order of their ends."""
        self._settings, self._plans = settings, plans
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for _ in range(settings.in_flight):
            self._begin_problem()

    def run(self, seconds: float) -> None:
        """Simulate until the time `seconds`."""
        while self._events and self._events[0][0] <= seconds:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = seconds

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _begin_problem(self) -> None:
        plan, begun, parts = next(self._plans), self.now, itertools.count(1)

        def ended() -> None:
            self.ended.append(self.now - begun)
            self._begin_problem()

        def joined() -> None:
            if next(parts) == 2:
                self._next(Task(list(plan.last), ended))

        self._next(Task(list(plan.first), joined))
        self._next(Task(list(plan.beside), joined))

    def _next(self, task: Task) -> None:
        """Begin the next step of a task."""
        if not task.steps:
            task.then()
            return
        step = task.steps.pop(0)
        task.left = step.seconds
        if step.use is Use.NONE:
            self._at(task.left, lambda: self._next(task))
        elif step.use is Use.SHARED:
            self._share(task)
        else:
            self.device.queue.append(task)
            if self.device.owner is None and len(self.device.queue) == 1:
                self._drain()

    def _share(self, task: Task) -> None:
        device = self.device
        if device.owner is not None or device.queue:
            device.stopped.append(task)
            return
        device.running.append(task)
        task.version += 1
        task.since, version = self.now, task.version
        self._at(task.left, lambda: self._end_sharing(task, version, is_done=True))

    def _drain(self) -> None:
        """Let all that share the device give way to the first of the queue."""
        self.device.asked = self.now
        for task in self.device.running:
            half = self._settings.give_way_s / 2
            seconds = half + self._random.expovariate(1 / half)
            version = task.version
            self._at(
                seconds,
                lambda task=task, version=version: self._end_sharing(task, version, is_done=False),
            )
        self._grant()

    def _end_sharing(self, task: Task, version: int, *, is_done: bool) -> None:
        if version != task.version:
            return
        task.version += 1
        self.device.running.remove(task)
        if not is_done:
            task.left -= self.now - task.since
            self.device.stopped.append(task)
        self._grant()
        if is_done:
            self._next(task)

    def _grant(self) -> None:
        """Give the device to the first of the queue, if no problem shares it any more."""
        device = self.device
        if device.owner is not None or device.running or not device.queue:
            return
        device.owner = owner = device.queue.pop(0)
        device.uses += 1
        device.draining_s += self.now - device.asked
        device.owned_s += owner.left
        self._at(owner.left, self._release)

    def _release(self) -> None:
        device = self.device
        owner, device.owner = device.owner, None
        device.asked = self.now
        self._grant()
        if device.owner is None:
            stopped, device.stopped = device.stopped, []
            for task in stopped:
                self._share(task)
        assert owner is not None
        self._next(owner)


def plans_of(records: Sequence[Record], settings: Settings, seed: int) -> Iterator[Plan]:
    """Yield the work on randomly chosen problems of `records`."""
    chosen = random.Random(seed)
    while True:
        yield plan_of(chosen.choice(records), settings)


def in_window(
    records: Sequence[Record], settings: Settings, seconds: float, seeds: int = 20
) -> float:
    """Return the mean number of problems that end within `seconds` of a start."""
    counts = []
    for seed in range(seeds):
        model = Model(plans_of(records, settings, seed), settings, seed)
        model.run(seconds)
        counts.append(len(model.ended))
    return mean(counts)


def steady(records: Sequence[Record], settings: Settings) -> dict[str, float]:
    """Return figures of a long benchmark, in seconds a problem."""
    model = Model(plans_of(records, settings, 0), settings, 0)
    model.run(LONG_S / 10)
    ended, device = len(model.ended), model.device
    before = (device.draining_s, device.owned_s, device.uses)
    model.run(LONG_S)
    count = max(1, len(model.ended) - ended)
    drained, owned, uses = (
        now - then
        for now, then in zip((device.draining_s, device.owned_s, device.uses), before, strict=True)
    )
    return {
        "s a problem": 0.9 * LONG_S / count,
        "latency": mean(model.ended[ended:]),
        "uses": uses / count,
        "exclusive": owned / count,
        "drain": drained / count,
    }


LONG_S = 30_000.0
"""Seconds of a simulation of a long benchmark."""
OLD_GIVE_WAY_S, GIVE_WAY_S = 1.1, 0.4
"""`Settings.give_way_s` before holds were shortened, and after.

Before, the last of several holds took 2.5 s on an H200. The second value is an estimate: 0.02 s
until a process looks, 0.1 to 0.3 s in which the GPU finishes, and calls that are not interrupted.
"""
FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)


def fitted(
    records: Sequence[Record], settings: Settings, seconds: float, ended: float
) -> tuple[Settings, float]:
    """Return the settings with the factor `slower` for which most nearly `ended` problems end
    within `seconds`, and their number."""
    tried = []
    for factor in FACTORS:
        trial = replace(settings, slower=factor)
        count = in_window(records, trial, seconds)
        tried.append((abs(count - ended), count, trial))
    _, count, found = min(tried, key=lambda one: one[0])
    return found, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--in-flight", type=int, required=True, help="of the measured run")
    parser.add_argument("--window", type=float, required=True, help="seconds of the measured run")
    parser.add_argument("--ended", type=float, required=True, help="problems that ended in them")
    options = parser.parse_args()
    lines = options.records.read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r.get("stages")]
    measured = mean(r["seconds"]["total_s"] for r in records)
    old = Settings(options.in_flight, OLD_GIVE_WAY_S)
    plain = steady(records, old)["latency"]
    print(f"seconds from start to end of a problem: {measured:.0f} measured, {plain:.0f} modelled")
    old, count = fitted(records, old, options.window, options.ended)
    print(
        f"{count:.1f} problems end in the window if shared steps take {old.slower} times as long:"
    )
    print(f"{options.window / count:.0f} s a problem by that window")
    now = replace(old, give_way_s=GIVE_WAY_S)
    early = replace(now, compiles_early=True)
    variants = {
        "long run, as measured": old,
        "shorter holds": now,
        "and early compilation": early,
        "and two rounds at once": replace(early, rounds_at_once=2),
        "and no autotuning": replace(early, spared=("autotuning",)),
        "and no sanitizer": replace(early, spared=("sanitizing",)),
    }
    for name, settings in variants.items():
        for in_flight in (4, 8, 12):
            found = steady(records, replace(settings, in_flight=in_flight))
            figures = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
            print(f"{name:<24} {in_flight:>3} in flight: {figures}")


if __name__ == "__main__":
    main()
