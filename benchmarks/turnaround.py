"""How long an agent waits: from a changed .cu source to verdict, quick timing and short profile.

    python benchmarks/turnaround.py --runs 4 [--out docs/measurements/turnaround.json]
        [--kernelbench FOLDER] [--cuda-agent FOLDER] [--beside 8] [--where]

For each example the judge is opened once, as a run does; then the attempt in `attempts/` is judged
again and again, its kernel source changed each time, so that the compiler runs each time, with
`--pause` seconds between that nobody counts: an agent or a person takes longer to change a source,
and the judge opens the next profile meanwhile. The first run opens torch.compile's process too and
is told apart. Then the same kernels go through the programs of other tools (`peers.py`),
`--beside` at a time. These need a GPU and nvcc; ours may be timed on a CPU too, with the first
attempts of the expert.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import peers

from cuagent.attempt import Attempt
from cuagent.expert.planner import propose
from cuagent.expert.subject import open_subject
from cuagent.judge import Judge
from cuagent.task import Device, Task, load_task
from cuagent.timing import Effort

ATTEMPTS = Path(__file__).parent / "attempts"
EXAMPLES = Path(__file__).parents[1] / "examples"
AWHILE_S = 0.02


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--beside", type=int, default=4, help="programs of others at a time")
    parser.add_argument("--only", default="", help="names of examples, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two attempts")
    parser.add_argument("--where", action="store_true", help="by function, for the last run")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = [n for n in asked.only.split(",") if n] or [p.name for p in sorted(ATTEMPTS.iterdir())]
    rows = [row for name in names for row in judged(name, asked)]
    with ThreadPoolExecutor(asked.beside) as pool:
        jobs = peers_of(asked.kernelbench, asked.cuda_agent, names).values()
        others = list(pool.map(lambda job: job(), jobs))
    for row in others:
        print(json.dumps(row), flush=True)
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


def judged(name: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of each stage, for each change of the source; the first also opens what stays.

    With `where` the last one by function too, which makes it a little slower.
    """
    begun = time.perf_counter()
    with judging(name, asked.device) as once:
        opened = time.perf_counter() - begun
        rows = []
        for run in range(asked.runs):
            if run:
                time.sleep(asked.pause)
            begun_at = {"run": run, "open": opened if run == 0 else 0.0}
            last = asked.where and run == asked.runs - 1
            rows.append(begun_at | (_by_function(once) if last else once()))
            print(json.dumps(rows[-1]), flush=True)
    return rows


@contextmanager
def judging(name: str, device: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """A judge that stays open, and what has it judge the example's attempt, changed once more."""
    task = load_task(EXAMPLES / f"{name}.py", device=device)
    files = attempted(task)
    with Judge(task) as judge:
        yield lambda: {"example": name} | _once(judge, files)


def _once(judge: Judge, files: dict[str, str]) -> dict[str, Any]:
    attempt = changed(files, f"// change {time.time_ns()}\n")
    marks = [time.perf_counter()]
    judgement = judge.judge(attempt, Effort.QUICK)
    marks.append(time.perf_counter())
    lines = judge.profile(attempt).lines()
    marks.append(time.perf_counter())
    timing = judgement.timing
    return {
        "judge": marks[1] - marks[0],
        "build": judgement.build.seconds,
        "verdict": judgement.verdict.seconds,
        "accepted": judgement.verdict.accepted,
        "detail": judgement.verdict.detail,
        "timing": timing.seconds if timing is not None else None,
        "arms": {a.name: a.median for a in timing.arms} if timing is not None else {},
        "busy": timing.busy if timing is not None else None,
        "profile": marks[2] - marks[1],
        "profile lines": len(lines),
        "all": marks[2] - marks[0],
    }


def _by_function(once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row, and the seconds under each of our functions that waited or worked for a while."""
    with cProfile.Profile() as seen:
        row = once()
    under = {
        f"{Path(file).stem}.{name}": round(found[3], 3)
        for (file, _, name), found in pstats.Stats(seen).stats.items()  # type: ignore[attr-defined]
        if "cuagent" in file and found[3] > AWHILE_S
    }
    return row | {"where": dict(sorted(under.items(), key=lambda item: -item[1]))}


def attempted(task: Task) -> dict[str, str]:
    """Files of an attempt: those in `attempts/` on a GPU, the expert's first one on a CPU."""
    if task.device is Device.CPU:
        proposal = propose(open_subject(task), [])
        assert proposal is not None
        return dict(proposal.candidate.files)
    folder = ATTEMPTS / task.path.stem
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".cu"))
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def changed(files: dict[str, str], line: str) -> Attempt:
    """An attempt with one more line in its kernel sources."""
    return Attempt(
        tuple((name, line * (not name.endswith(".py")) + text) for name, text in files.items())
    )


def peers_of(
    kernelbench: Path | None, cuda_agent: Path | None, names: list[str]
) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """The programs of other tools for the same kernels, by tool and example."""
    tools = {"KernelBench": (peers.kernelbench, kernelbench)}
    tools["CUDA-Agent"] = (peers.cuda_agent, cuda_agent)
    return {
        (tool, name): partial(run, checkout, EXAMPLES / f"{name}.py", ATTEMPTS / name)
        for tool, (run, checkout) in tools.items()
        if checkout is not None
        for name in names
    }


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
