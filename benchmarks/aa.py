"""Measure how often timing reports a false difference (A/A), and how often it finds a 3 % delay.

    python benchmarks/aa.py --device cpu --runs 300 --out docs/measurements/aa-cpu.json
    python benchmarks/aa.py --device cuda --runs 300 --delays 40

An A/A run times a reference as its own candidate against eager: one quick timing, through all steps
that a candidate's timing has. `--delays` adds runs with a known delay. `--task` replaces the
built-in module for A/A. On a CPU the built-in module is that of `cuagent doctor --timing`, and the
delay is 3 % more work. On a GPU the module is a chain of three products and tanhs on 1024 x 1024
(some 150 us on an H200). The delay there is a kernel that only waits; its length is chosen so that
CUDA events in this process measure 3 % more. The output file has the raw ratios with their limits
and standings, and the share of the processors that other processes used.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from cuagent.arms import EAGER
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.timing.self_check import COLUMNS, MODULE, MORE, ROWS, SAME, extra_rows
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Task, load_task
from cuagent.timing import Effort, Standing
from cuagent.verify.referee import Referee

CHAIN = """
import torch
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(1024, 1024) / 32)
    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x @ self.weight)
        {more}
        return x
"""
DELAY = 0.03
"""Delay of the slower candidate, as a share of the reference's time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--task", help="task for A/A instead of the built-in module")
    parser.add_argument("--inputs", default=None)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop A/A after this time")
    parser.add_argument("--delays", type=int, default=0, help="runs with 3 %% delay")
    parser.add_argument("--effort", choices=tuple(Effort), default="quick")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    effort = Effort(options.effort)
    with known_difference(Device(options.device)) as known:
        task, same = known.task, known.same
        if options.task:
            task = load_task(options.task, inputs=options.inputs, device=options.device)
            same = task.path.read_text().replace("class Model", "class ModelNew")
        delayed, delay = [], {}
        if options.delays:
            delay = known.delay()
            delayed = against_eager(known.task, delay["source"], effort, options.delays)
        runs = against_eager(task, same, effort, options.runs, options.seconds)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "task": task.name,
        "device": runs[0]["device"] if runs else options.device,
        "effort": effort,
        "runs": runs,
        "summary": summary(runs, delayed),
    }
    if delayed:
        result["delay"] = delay | {"runs": delayed}
    print(json.dumps(result["summary"] | {"task": task.name, "inputs": options.inputs}))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def summary(runs: list[dict[str, Any]], delayed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return statistics of the A/A runs, and the number of delays that were detected.

    `called`: number of A/A runs in which the timing reported a difference. A correct timing has
    few.
    """
    ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
    widths = [(run["high"] / run["low"]) ** 0.5 - 1 for run in runs if run["low"]]
    figures = {
        "runs": len(runs),
        "called": sum(run["standing"] != Standing.INCONCLUSIVE for run in runs),
        "contradicted": sum(bool(run["contradiction"]) for run in runs),
        "mean": mean(ratios),
        "median": median(ratios),
        "sd": stdev(ratios) if len(ratios) > 1 else 0.0,
        "median seconds": median(run["seconds"] for run in runs),
        "median half width": median(widths),
        "median busy": median(run["busy"] for run in runs),
    }
    if delayed:
        found = sum(run["standing"] == Standing.SLOWER for run in delayed)
        figures |= {"delays": len(delayed), "delays found": found}
    return figures


@dataclass(frozen=True)
class KnownDifference:
    """A task with two candidates: `same`, the source of one that equals the reference, and `delay`,
    which makes a slower one."""

    task: Task
    same: str
    delay: Callable[[], dict[str, Any]]
    """Function that returns a dictionary with the `source` of the delayed candidate, and figures of
    its delay."""


@contextmanager
def known_difference(device: Device) -> Iterator[KnownDifference]:
    """Yield the built-in task for a device, with its candidates. The task's file exists inside the
    context only."""
    on_cpu = device is Device.CPU
    module, shape = (MODULE, f"{ROWS[device]},{COLUMNS}") if on_cpu else (CHAIN, "1024,1024")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("gate.py" if on_cpu else "chain.py")
        path.write_text(module.format(name="Model", more=SAME))
        task = load_task(path, inputs=f"f32[{shape}]", device=device.value)
        same = module.format(name="ModelNew", more=SAME)
        yield KnownDifference(task, same, more_work if on_cpu else calibrated)


def more_work() -> dict[str, Any]:
    """Return the CPU candidate with 3 % more work: its `source`, and the number of added `rows`."""
    rows = extra_rows(DELAY, Device.CPU)
    return {"source": MODULE.format(name="ModelNew", more=MORE.format(rows=rows)), "rows": rows}


def calibrated() -> dict[str, Any]:
    """Return the `source` of a GPU candidate with a delay that plain CUDA events measure as 3 %,
    and the measured times."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(1024, 1024, device="cuda")
    plain: dict[str, Any] = {}
    exec(CHAIN.format(name="Model", more="pass"), plain)
    model = plain["Model"]().to("cuda")
    scratch = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def seconds(cycles: list[int], calls: int = 300) -> list[float]:
        """Return the median seconds of a call, for each delay in clock cycles. Calls with different
        delays alternate."""
        events: list[list[Any]] = [[] for _ in cycles]
        with torch.no_grad():
            for _ in range(calls):
                for count, pairs in zip(cycles, events, strict=True):
                    scratch.zero_()
                    pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                    pair[0].record()
                    model(x)
                    if count:
                        torch.cuda._sleep(count)
                    pair[1].record()
                    pairs.append(pair)
        torch.cuda.synchronize()
        return [median(a.elapsed_time(b) for a, b in pairs[50:]) * 1e-3 for pairs in events]

    none, few, many = seconds([0, 2000, 12000])
    slope = (many - few) / 10000
    cycles = max(1, round(2000 + ((1 + DELAY) * none - few) / slope))
    none, delayed = seconds([0, cycles])
    source = CHAIN.format(name="ModelNew", more=f"torch.cuda._sleep({cycles})")
    return {"source": source, "cycles": cycles, "events": [none, delayed], "ratio": delayed / none}


def against_eager(
    task: Task, source: str, effort: Effort, runs: int, seconds: float = 1e9
) -> list[dict[str, Any]]:
    """Return up to `runs` timings of the candidate `source` against eager; start none after
    `seconds`."""
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with closing(timings(task, source, effort)) as more:
        while len(rows) < runs and time.perf_counter() - started < seconds:
            rows.append(next(more))
    return rows


def timings(task: Task, source: str, effort: Effort) -> Generator[dict[str, Any], None, None]:
    """Yield endless timings of the candidate `source` against eager, one dictionary each."""
    attempt = Attempt((("model_new.py", source),))
    built = build(attempt, task.device)
    with Referee(task) as referee, Timer(referee, (EAGER,)) as timer:
        while True:
            timing = timer.time(attempt, built, effort)
            ratio = timing.ratios.get(EAGER)
            candidate, eager = timing.arm("candidate"), timing.arm(EAGER)
            yield {
                "ratio": ratio.value if ratio else None,
                "low": ratio.low if ratio else None,
                "high": ratio.high if ratio else None,
                "standing": ratio.standing if ratio else "none",
                "contradiction": timing.refused,
                "candidate": candidate.median if candidate else None,
                "eager": eager.median if eager else None,
                "charged": candidate.charged if candidate else None,
                "failed": candidate.failed if candidate else "",
                "seconds": timing.seconds,
                "busy": timing.busy,
                "device": timing.device,
            }


if __name__ == "__main__":
    sys.exit(main())
