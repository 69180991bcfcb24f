"""Compare cuagent's times with those of do_bench and KernelBench, one condition at a time.

    python benchmarks/against_do_bench.py [--kernelbench FOLDER] [--out do_bench.json]

The subjects are softmax, small and large, eager and compiled; a large product in fp32 and TF32; and
120 small kernels, whose launches are visible or hidden. First, timings in this process: events
around calls, with and without an L2 flush before each, on one input or on many, then do_bench and
KernelBench's own timing (FOLDER is a checkout, not part of this repository). They run while no
other process has a context on the GPU, and again while cuagent's processes have theirs. Second,
blocks in workers: on inputs in lent memory and on own copies, with and without the lead, and after
writes of the referee. Their times are also given by position in the block, because the first call
of a resumed process is slow. Last, cuagent's whole protocol. Times are in microseconds: medians,
and half of the 16-84 % range as spread. Needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cuagent.measure.statistics import quantile
from cuagent.measure.timing.timer import Timer
from cuagent.task import Task, load_task, open_reference, read_settings
from cuagent.task.settings import arm_settings
from cuagent.verify.calls import FLUSH
from cuagent.verify.referee import Referee

CALLS, INPUTS, BLOCKS = 100, 12, 12
PRODUCT = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b.T)
"""
SMALL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(60):
            x = torch.tanh(x) * 1.01
        return x
"""
"""Task of 120 kernels of a few microseconds each; their launch times can be hidden or not."""
Figures = dict[str, tuple[float, float]]
"""Median and spread of the times, in seconds, by name of the condition."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for subject in SUBJECTS:
        with opened(subject) as task:
            for row in compared(task, subject.arms, options.kernelbench):
                print(json.dumps(row), flush=True)
                rows.append(row)
    if options.out:
        about = {"command": " ".join(["python", *sys.argv]), "rows": rows}
        options.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0


def compared(task: Task, arms: tuple[str, ...], kernelbench: Path | None) -> list[dict[str, Any]]:
    """Return a row for each arm of a task, with its times under each condition."""
    exclusive_gpu = {name: in_process(task, name, kernelbench) for name in arms}
    with Referee(task) as referee, Timer(referee, arms) as timer:
        timing = timer.compare()
        timed_arms = timer.opened()
        shared = {name: in_process(task, name, None) for name in arms}
        workers = {name: in_worker(referee, timed_arms[name].session) for name in arms}
    rows = []
    for name in arms:
        arm = timing.arm(name)
        found: Figures = dict(exclusive_gpu[name])
        found |= {f"{c}, beside our processes": v for c, v in shared[name].items()}
        found |= workers[name][0]
        found["our protocol"] = _summary(arm.samples if arm is not None else [])
        rows.append(
            {
                "task": task.name,
                "inputs": shapes(task),
                "arm": name,
                "us": {c: [round(1e6 * v, 2) for v in pair] for c, pair in found.items()},
                "call by call": workers[name][1],
            }
        )
    torch.cuda.empty_cache()
    return rows


@dataclass(frozen=True)
class Subject:
    """A task and the arms to time on it under every condition."""

    name: str
    source: str
    """Source text of the task; "" for that of the file `EXAMPLE`."""
    inputs: str
    arms: tuple[str, ...]


EXAMPLE = Path(__file__).parents[1] / "examples/softmax_bias_scale.py"
SUBJECTS = (
    Subject("softmax 2048", "", "f32[2048,1024]", ("eager", "compile")),
    Subject("softmax 8192", "", "f32[8192,1024]", ("eager", "compile")),
    Subject("product", PRODUCT, "f32[2048,8192],f32[4096,8192]", ("eager", "eager+tf32")),
    Subject("small", SMALL, "f32[256,1024]", ("eager", "compile", "reduce-overhead")),
)


@contextmanager
def opened(subject: Subject) -> Iterator[Task]:
    """Yield the loaded task of a subject. Its temporary file exists inside the context only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{subject.name.split()[0]}.py"
        path.write_text(subject.source or EXAMPLE.read_text())
        yield load_task(path, inputs=subject.inputs, device="cuda")


def shapes(task: Task) -> list[list[int]]:
    """Return the shape of each input of a task."""
    return [list(x.shape) for x in open_reference(task).inputs(0)]


def in_process(task: Task, name: str, kernelbench: Path | None) -> Figures:
    """Time one arm of a task in this process: by CUDA events, by do_bench and by KernelBench's
    functions.

    Return (median, spread) in seconds by condition.
    """
    from triton.testing import do_bench

    reference = open_reference(task)
    before = read_settings()
    arm_settings(before, task.precision, name.split("+")[1:]).apply()
    model: Any = reference.model(0)
    if not name.startswith("eager"):
        torch._dynamo.reset()
        model.compile(mode=None if name == "compile" else name)
    sets = [reference.inputs(seed) for seed in range(INPUTS)]
    with torch.no_grad():
        found = {
            "one input, no flush": _events(model, sets[:1], 0),
            "many inputs, no flush": _events(model, sets, 0),
            "one input, flush": _events(model, sets[:1], FLUSH),
            "many inputs, flush": _events(model, sets, FLUSH),
            "many inputs, flush, blocks of 12 after 5 ms idle": _events(model, sets, FLUSH, 12),
        }
        found["do_bench"] = _summary(
            [1e-3 * t for t in do_bench(lambda: model(*sets[0]), return_mode="all")]
        )
        if kernelbench is not None:
            found |= _kernelbench(kernelbench, model, sets[0])
    before.apply()
    return found


def in_worker(referee: Referee, session: Any) -> tuple[Figures, dict[str, list[float]]]:
    """Time one arm in a worker process under several conditions.

    Return (median and spread in seconds by condition, medians in microseconds by the call's
    position in its block). The times are those of the worker's own clock.
    """
    batch = referee.batches.create(INPUTS)
    found: Figures = {}
    places = {}
    conditions: dict[str, dict[str, Any]] = {
        "lent inputs": {"own": False},
        "own inputs": {"own": True},
        "own inputs, no lead": {"own": True, "lead": 0},
    }
    try:
        for condition, options in conditions.items():
            for poisoned in (False, True):
                blocks = []
                for _ in range(BLOCKS):
                    if poisoned:
                        batch.outputs.poison(0xFF)
                    block = session.run(
                        batch.inputs,
                        batch.outputs,
                        batch.slots,
                        deadline_s=60.0,
                        flush=FLUSH,
                        **options,
                    )
                    blocks.append(block.claimed_s)
                name = f"worker, {condition}" + ", outputs written by the referee before" * poisoned
                found[name] = _summary([claim for claims in blocks[1:] for claim in claims])
                found[f"{name}, without the first call"] = _summary(
                    [claim for claims in blocks[1:] for claim in claims[1:]]
                )
                places[name] = [
                    round(1e6 * median(column), 2) for column in zip(*blocks[1:], strict=True)
                ]
        session.forget(batch.inputs)
        session.forget(batch.outputs)
    finally:
        referee.batches.discard(batch)
    return found, places


def _events(
    model: Callable[..., Any], sets: list[list[Any]], flush: int, block: int = 0
) -> tuple[float, float]:
    """Return median and spread of the seconds of a call, measured by CUDA events.

    Calls rotate through the input sets. `flush`: number of bytes written before each call; 0: none.
    `block`: number of calls after which the GPU idles for 5 ms; 0: no idling.
    """
    scratch = torch.empty(max(1, flush), dtype=torch.uint8, device="cuda")
    events = []
    for call in range(CALLS + 10):
        if block and call % block == 0:
            torch.cuda.synchronize()
            time.sleep(0.005)
        if flush:
            scratch.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        model(*sets[call % len(sets)])
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return _summary([1e-3 * a.elapsed_time(b) for a, b in events[10:]])


def _kernelbench(folder: Path, model: Callable[..., Any], arguments: list[Any]) -> Figures:
    """Return (median, spread) in seconds of a call, by KernelBench's timing method.

    KernelBench's default method uses events, waits and flushes before each call, and reports the
    mean.
    """
    spec = importlib.util.spec_from_file_location("timing", folder / "src/kernelbench/timing.py")
    assert spec is not None
    assert spec.loader is not None
    timing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(timing)
    found = {}
    for method in ("cuda_event", "do_bench_impl", "host_time"):
        with contextlib.redirect_stdout(io.StringIO()):
            times = timing.get_timing_function(method)(
                model, arguments, num_trials=100, verbose=False, device=torch.device("cuda:0")
            )
        found[f"KernelBench, {method}"] = _summary([1e-3 * t for t in times])
        found[f"KernelBench, {method}, mean"] = (1e-3 * sum(times) / len(times), 0.0)
    return found


def _summary(times: Any) -> tuple[float, float]:
    times = list(times)
    if not times:
        return float("nan"), float("nan")
    return median(times), (quantile(times, 0.84) - quantile(times, 0.16)) / 2


if __name__ == "__main__":
    sys.exit(main())
