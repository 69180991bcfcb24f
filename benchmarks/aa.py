"""How often timing calls a difference where there is none, and finds one of 3 %.

    python benchmarks/aa.py --device cpu --runs 300 --out docs/measurements/aa-cpu.json
    python benchmarks/aa.py --device cuda --task examples/softmax_bias_scale.py --runs 100

A/A is the task's own reference as the candidate, against eager; a quick timing each, everything
that a candidate goes through included. The gate's module with 3 % more work follows. Raw ratios,
limits, verdicts and the share of the processors that others took go to the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median, stdev

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.measure.gates import gates
from cuagent.measure.protocol import Timer
from cuagent.measure.timing import Effort, Standing
from cuagent.task import Device, Task, load_task
from cuagent.verify.referee import Referee
from cuagent.worker.arms import EAGER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--task", default="examples/softmax_bias_scale.py")
    parser.add_argument("--inputs", default=None)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop A/A after these")
    parser.add_argument("--delays", type=int, default=0, help="runs of the 3 % gate")
    parser.add_argument("--effort", choices=tuple(Effort), default="quick")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    task = load_task(asked.task, inputs=asked.inputs, device=asked.device)
    effort = Effort(asked.effort)
    runs = same_against_itself(task, effort, asked.runs, asked.seconds)
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
    if asked.delays:
        found = gates(Device(asked.device), effort=effort, runs=asked.delays, delays=(0.03,))
        about["delay of 3 %"] = asdict(found.gates[0])
        about["summary"]["delays found"] = len(found.gates[0].called) - found.gates[0].wrong
    print(json.dumps(about["summary"] | {"task": task.name, "inputs": asked.inputs}))
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0


def same_against_itself(task: Task, effort: Effort, runs: int, seconds: float) -> list[dict]:
    """A/A: the reference's own text under the candidate's name."""
    source = task.path.read_text().replace("class Model", "class ModelNew")
    attempt = Attempt((("model_new.py", source),))
    built = build(attempt, task.device)
    done = []
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
