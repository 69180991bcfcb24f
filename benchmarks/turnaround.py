"""How long an agent waits: from a changed .cu source to verdict, quick timing and short profile.

    python benchmarks/turnaround.py --runs 4 [--out docs/measurements/turnaround.json]
        [--kernelbench FOLDER] [--cuda-agent FOLDER] [--beside 8]

For each example the judge is opened once, as a run does; then the attempt in `attempts/` is judged
again and again, its kernel source changed each time, so that the compiler runs each time. The first
run opens torch.compile's process too and is told apart. Then the same kernels go through the
programs of other tools (`peers.py`), `--beside` at a time, each on processors of its own. Needs a
GPU and nvcc.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import peers

from cuagent.attempt import Attempt
from cuagent.judge import Judge
from cuagent.measure.timing import Effort
from cuagent.task import load_task

ATTEMPTS = Path(__file__).parent / "attempts"
EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--beside", type=int, default=4, help="programs of others at a time")
    parser.add_argument("--only", default="", help="names of examples, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = [n for n in asked.only.split(",") if n] or [p.name for p in sorted(ATTEMPTS.iterdir())]
    rows = [row for name in names for row in judged(name, asked.runs, asked.device)]
    others = in_turn(asked.beside, asked.kernelbench, asked.cuda_agent, names)
    about = {
        "command": " ".join(["python", *sys.argv]),
        "summary": summary(rows, others),
        "ours": rows,
        "others": others,
    }
    print(json.dumps(about["summary"]))
    if asked.out:
        asked.out.write_text(json.dumps(about, indent=1) + "\n")
    return 0


def judged(name: str, runs: int, device: str) -> list[dict[str, Any]]:
    """Seconds of each stage, for each change of the source."""
    begun = time.perf_counter()
    rows = []
    with Judge(load_task(EXAMPLES / f"{name}.py", device=device)) as judge:
        opened = time.perf_counter() - begun
        for run in range(runs):
            attempt = changed(ATTEMPTS / name, f"// change {time.time_ns()}\n")
            marks = [time.perf_counter()]
            judgement = judge.judge(attempt, Effort.QUICK)
            marks.append(time.perf_counter())
            lines = judge.profile(attempt).lines()
            marks.append(time.perf_counter())
            timing = judgement.timing
            rows.append(
                {
                    "example": name,
                    "run": run,
                    "open": opened if run == 0 else 0.0,
                    "judge": marks[1] - marks[0],
                    "build": judgement.build.seconds,
                    "verdict": judgement.verdict.seconds,
                    "accepted": judgement.verdict.accepted,
                    "detail": judgement.verdict.detail,
                    "timing": timing.seconds if timing is not None else None,
                    "arms": {a.name: a.median for a in timing.arms} if timing is not None else {},
                    "profile": marks[2] - marks[1],
                    "profile lines": len(lines),
                    "all": marks[2] - marks[0],
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def changed(folder: Path, line: str) -> Attempt:
    """The attempt in `folder` with one more line in its kernel source."""
    files = [
        (str(path.relative_to(folder)), line * (path.suffix == ".cu") + path.read_text())
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".cu", ".cpp")
    ]
    return Attempt(tuple(files))


def in_turn(
    beside: int, kernelbench: Path | None, cuda_agent: Path | None, names: list[str]
) -> list[dict[str, Any]]:
    """What the others need for the same kernels."""
    jobs: list[Callable[[], dict[str, Any]]] = []
    for tool, checkout in ((peers.kernelbench, kernelbench), (peers.cuda_agent, cuda_agent)):
        if checkout is not None:
            jobs += [
                partial(tool, checkout, EXAMPLES / f"{name}.py", ATTEMPTS / name) for name in names
            ]
    with ThreadPoolExecutor(beside) as pool:
        found = list(pool.map(lambda job: job(), jobs))
    for row in found:
        print(json.dumps(row), flush=True)
    return found


def summary(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the runs after the first, and how many times longer each tool took."""
    ours = {
        name: median(row["all"] for row in rows if row["example"] == name and row["run"] > 0)
        for name in {row["example"] for row in rows if row["run"] > 0}
    }
    figures: dict[str, Any] = {"ours": ours, "median": median(ours.values()) if ours else None}
    for tool in dict.fromkeys(row["tool"] for row in others):
        times = {row["example"]: row["seconds"]["all"] for row in others if row["tool"] == tool}
        figures[tool] = {name: seconds / ours[name] for name, seconds in times.items()}
        figures[f"{tool}, median"] = median(figures[tool].values())
    return figures


if __name__ == "__main__":
    sys.exit(main())
