"""How often timing calls a difference where there is none, and finds one of 3 %.

    python benchmarks/aa.py --device cpu --runs 300 --out docs/measurements/aa-cpu.json
    python benchmarks/aa.py --device cuda --chain --runs 300 --delays 40

A/A is the task's own reference as the candidate, against eager; a quick timing each, everything
that a candidate goes through included. Then the same with a known delay. On a CPU that is the
gate's module with 3 % more work. With `--chain` the task is a chain of three products and tanhs on
1024 x 1024 (some 150 us on an H200), and the delay a kernel that only waits, so long that plain
events in this process see 3 % more. Raw ratios, limits, verdicts and the share of the processors
that others took go to the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.gates import gates
from cuagent.measure.protocol import Timer
from cuagent.measure.timing import Effort, Standing
from cuagent.task import Device, Task, load_task
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
    parser.add_argument("--task", default="examples/softmax_bias_scale.py")
    parser.add_argument("--inputs", default=None)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop A/A after these")
    parser.add_argument("--delays", type=int, default=0, help="runs with 3 % more")
    parser.add_argument("--chain", action="store_true", help="the chain of products, on a GPU")
    parser.add_argument("--effort", choices=tuple(Effort), default="quick")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    effort = Effort(asked.effort)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.py"
        path.write_text(CHAIN.format(name="Model", more="pass"))
        if asked.chain:
            task = load_task(path, inputs="f32[1024,1024]", device="cuda")
        else:
            task = load_task(asked.task, inputs=asked.inputs, device=asked.device)
        same = task.path.read_text().replace("class Model", "class ModelNew")
        late, delayed = [], {}
        if asked.chain and asked.delays:
            delayed = calibrated()
            late = against_eager(task, delayed["source"], effort, asked.delays)
        runs = against_eager(task, same, effort, asked.runs, asked.seconds)
    ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
    widths = [(run["high"] / run["low"]) ** 0.5 - 1 for run in runs if run["low"]]
    called = [run for run in runs if run["standing"] != Standing.INCONCLUSIVE]
    about = {
        "command": " ".join(["python", *sys.argv]),
        "task": task.name,
        "device": runs[0]["device"] if runs else asked.device,
        "effort": effort,
        "runs": runs,
        "summary": {
            "runs": len(runs),
            "called": len(called),
            "contradicted": sum(bool(run["contradiction"]) for run in runs),
            "mean": mean(ratios),
            "sd": stdev(ratios) if len(ratios) > 1 else 0.0,
            "median seconds": median(run["seconds"] for run in runs),
            "median half width": median(widths),
            "median busy": median(run["busy"] for run in runs),
        },
    }
    if late:
        about["delay"] = delayed | {"runs": late}
        found = sum(run["standing"] == Standing.SLOWER for run in late)
        about["summary"] |= {"delays": len(late), "delays found": found}
    elif asked.delays:
        found = gates(Device(asked.device), effort=effort, runs=asked.delays, delays=(0.03,))
        about["delay of 3 %"] = asdict(found.gates[0])
        about["summary"]["delays found"] = len(found.gates[0].called) - found.gates[0].wrong
    print(json.dumps(about["summary"] | {"task": task.name, "inputs": asked.inputs}))
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0


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
    """Timings of `source` as the candidate against eager."""
    attempt = Attempt((("model_new.py", source),))
    built = build(attempt, task.device)
    done: list[dict[str, Any]] = []
    begun = time.perf_counter()
    with Referee(task) as referee, Timer(referee, (EAGER,)) as timer:
        while len(done) < runs and time.perf_counter() - begun < seconds:
            timing = timer.time(attempt, built, effort)
            ratio = timing.ratios.get(EAGER)
            candidate, eager = timing.arm("candidate"), timing.arm(EAGER)
            done.append(
                {
                    "ratio": ratio.value if ratio else None,
                    "low": ratio.low if ratio else None,
                    "high": ratio.high if ratio else None,
                    "standing": ratio.standing if ratio else "none",
                    "contradiction": timing.contradiction,
                    "candidate": candidate.median if candidate else None,
                    "eager": eager.median if eager else None,
                    "failed": candidate.failed if candidate else "",
                    "seconds": timing.seconds,
                    "busy": timing.busy,
                    "device": timing.device,
                }
            )
    return done


if __name__ == "__main__":
    sys.exit(main())
