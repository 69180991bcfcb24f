"""How often timing calls a difference where there is none, and finds one of 3 %.

    python benchmarks/aa.py --device cpu --runs 300 --out docs/measurements/aa-cpu.json
    python benchmarks/aa.py --device cuda --runs 300 --delays 40

A/A is a reference as its own candidate, against eager; a quick timing each, everything that a
candidate goes through included. Then the same with a known delay. The module is one of ours unless
`--task` names another for A/A: on a CPU that of `cuagent doctor --timing`, the delay 3 % more work;
on a GPU a chain of three products and tanhs on 1024 x 1024 (some 150 us on an H200), the delay a
kernel that only waits, so long that plain events in this process see 3 % more. Raw ratios, limits,
verdicts and the share of the processors that others took go to the file.
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

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.timing.self_check import COLUMNS, MODULE, MORE, ROWS, SAME, extra_rows
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, Task, load_task
from cuagent.timing import Effort, Standing
from cuagent.verify.referee import Referee
from cuagent.worker.arms import EAGER

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--task", help="for A/A, instead of our module")
    parser.add_argument("--inputs", default=None)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop A/A after these")
    parser.add_argument("--delays", type=int, default=0, help="runs with 3 %% more")
    parser.add_argument("--effort", choices=tuple(Effort), default="quick")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    effort = Effort(asked.effort)
    with known(Device(asked.device)) as ours:
        task, same = ours.task, ours.same
        if asked.task:
            task = load_task(asked.task, inputs=asked.inputs, device=asked.device)
            same = task.path.read_text().replace("class Model", "class ModelNew")
        late, delay = [], {}
        if asked.delays:
            delay = ours.delay()
            late = against_eager(ours.task, delay["source"], effort, asked.delays)
        runs = against_eager(task, same, effort, asked.runs, asked.seconds)
    about = {
        "command": " ".join(["python", *sys.argv]),
        "task": task.name,
        "device": runs[0]["device"] if runs else asked.device,
        "effort": effort,
        "runs": runs,
        "summary": summary(runs, late),
    }
    if late:
        about["delay"] = delay | {"runs": late}
    print(json.dumps(about["summary"] | {"task": task.name, "inputs": asked.inputs}))
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0


def summary(runs: list[dict[str, Any]], late: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs of equal arms come to, and how many of those with a delay were found."""
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
    if late:
        found = sum(run["standing"] == Standing.SLOWER for run in late)
        figures |= {"delays": len(late), "delays found": found}
    return figures


@dataclass(frozen=True)
class Known:
    """A task, itself as a candidate, and how to make a candidate that takes 3 % longer."""

    task: Task
    same: str
    delay: Callable[[], dict[str, Any]]
    """Its `source`, and how it was made."""


@contextmanager
def known(device: Device) -> Iterator[Known]:
    """The module of ours for a device, in a file that goes afterwards."""
    on_cpu = device is Device.CPU
    module, shape = (MODULE, f"{ROWS[device]},{COLUMNS}") if on_cpu else (CHAIN, "1024,1024")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("gate.py" if on_cpu else "chain.py")
        path.write_text(module.format(name="Model", more=SAME))
        task = load_task(path, inputs=f"f32[{shape}]", device=device.value)
        same = module.format(name="ModelNew", more=SAME)
        yield Known(task, same, more_work if on_cpu else calibrated)


def more_work() -> dict[str, Any]:
    """The gate's module with 3 % more to do."""
    rows = extra_rows(DELAY, Device.CPU)
    return {"source": MODULE.format(name="ModelNew", more=MORE.format(rows=rows)), "rows": rows}


def calibrated() -> dict[str, Any]:
    """The chain with a delay that plain events see as 3 %, and what they saw."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(1024, 1024, device="cuda")
    plain: dict[str, Any] = {}
    exec(CHAIN.format(name="Model", more="pass"), plain)
    model = plain["Model"]().to("cuda")
    scratch = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def seconds(cycles: list[int], calls: int = 300) -> list[float]:
        """Median of a call with each delay, interleaved."""
        marks: list[list[Any]] = [[] for _ in cycles]
        with torch.no_grad():
            for _ in range(calls):
                for count, kept in zip(cycles, marks, strict=True):
                    scratch.zero_()
                    pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                    pair[0].record()
                    model(x)
                    if count:
                        torch.cuda._sleep(count)
                    pair[1].record()
                    kept.append(pair)
        torch.cuda.synchronize()
        return [median(a.elapsed_time(b) for a, b in kept[50:]) * 1e-3 for kept in marks]

    none, few, many = seconds([0, 2000, 12000])
    slope = (many - few) / 10000
    cycles = max(1, round(2000 + ((1 + DELAY) * none - few) / slope))
    none, late = seconds([0, cycles])
    source = CHAIN.format(name="ModelNew", more=f"torch.cuda._sleep({cycles})")
    return {"source": source, "cycles": cycles, "events": [none, late], "ratio": late / none}


def against_eager(
    task: Task, source: str, effort: Effort, runs: int, seconds: float = 1e9
) -> list[dict[str, Any]]:
    """Timings of `source` as the candidate against eager, so many or as long."""
    begun = time.perf_counter()
    done: list[dict[str, Any]] = []
    with closing(timings(task, source, effort)) as more:
        while len(done) < runs and time.perf_counter() - begun < seconds:
            done.append(next(more))
    return done


def timings(task: Task, source: str, effort: Effort) -> Generator[dict[str, Any], None, None]:
    """Timings of `source` as the candidate against eager, one after another without end."""
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
