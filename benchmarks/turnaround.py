"""Time an agent's wait: from a changed .cu source to verdict, quick timing and short profile.

    python benchmarks/turnaround.py --runs 4 [--out docs/measurements/turnaround.json]
        [--kernelbench FOLDER] [--cuda-agent FOLDER] [--beside 8] [--where]

The judge of an example is opened once, as in a run. Then it judges the attempt in `attempts/`
repeatedly. Each time the kernel source is changed, so that the compiler runs. The `--pause` seconds
between attempts are not counted: in a real run an author changes the source in this time, and the
judge prepares the next profile. The first run also opens torch.compile's process and is reported
separately. Then the programs of other tools (`peers.py`) judge the same kernels, `--beside` of them
in parallel. All this needs a GPU and nvcc. On a CPU only cuagent runs, with the first attempts of
the expert.
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
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.search.planner import propose
from cuagent.judge import LocalJudge
from cuagent.task import Device, Task, load_task
from cuagent.timing import Effort

ATTEMPTS = Path(__file__).parent / "attempts"
EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWN_S = 0.02
"""Least time in seconds of a function in the output of `--where`."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--beside", type=int, default=4, help="programs of other tools in parallel")
    parser.add_argument("--only", default="", help="names of examples, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two attempts")
    parser.add_argument("--where", action="store_true", help="times by function for the last run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [n for n in options.only.split(",") if n] or [
        p.name for p in sorted(ATTEMPTS.iterdir())
    ]
    rows = [row for name in names for row in judged(name, options)]
    with ThreadPoolExecutor(options.beside) as pool:
        jobs = peers_of(options.kernelbench, options.cuda_agent, names).values()
        others = list(pool.map(lambda job: job(), jobs))
    for row in others:
        print(json.dumps(row), flush=True)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "summary": summary(rows, others),
        "ours": rows,
        "others": others,
    }
    print(json.dumps(result["summary"]))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def judged(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge the example's attempt after each change of its source; return a row for each, with the
    seconds of each stage.

    The first run also opens processes that later runs use again. With `--where` the row of the last
    run also has the seconds by function, which makes this run a little slower.
    """
    started = time.perf_counter()
    with judging(name, options.device) as once:
        opened = time.perf_counter() - started
        rows = []
        for run in range(options.runs):
            if run:
                time.sleep(options.pause)
            row = {"run": run, "open": opened if run == 0 else 0.0}
            last = options.where and run == options.runs - 1
            rows.append(row | (_by_function(once) if last else once()))
            print(json.dumps(rows[-1]), flush=True)
    return rows


@contextmanager
def judging(name: str, device: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield a function that changes the attempt's source, judges the attempt and returns a row.

    The judge stays open inside this context.
    """
    task = load_task(EXAMPLES / f"{name}.py", device=device)
    files = attempted(task)
    with LocalJudge(task) as judge:
        yield lambda: {"example": name} | _once(judge, files)


def _once(judge: LocalJudge, files: dict[str, str]) -> dict[str, Any]:
    attempt = changed(files, f"// change {time.time_ns()}\n")
    stamps = [time.perf_counter()]
    judgement = judge.judge(attempt, Effort.QUICK)
    stamps.append(time.perf_counter())
    lines = judge.profile(attempt).lines()
    stamps.append(time.perf_counter())
    timing = judgement.timing
    return {
        "judge": stamps[1] - stamps[0],
        "build": judgement.build.seconds,
        "verdict": judgement.verdict.seconds,
        "accepted": judgement.verdict.accepted,
        "detail": judgement.verdict.detail,
        "timing": timing.seconds if timing is not None else None,
        "arms": {a.name: a.median for a in timing.arms} if timing is not None else {},
        "busy": timing.busy if timing is not None else None,
        "profile": stamps[2] - stamps[1],
        "profile lines": len(lines),
        "all": stamps[2] - stamps[0],
    }


def _by_function(once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a row of `once`, to which the seconds of each of cuagent's functions above `SHOWN_S`
    are added."""
    with cProfile.Profile() as seen:
        row = once()
    under = {
        f"{Path(file).stem}.{name}": round(found[3], 3)
        for (file, _, name), found in pstats.Stats(seen).stats.items()  # type: ignore[attr-defined]
        if "cuagent" in file and found[3] > SHOWN_S
    }
    return row | {"where": dict(sorted(under.items(), key=lambda item: -item[1]))}


def attempted(task: Task) -> dict[str, str]:
    """Return the files of an attempt at an example task: those in `attempts/` for a GPU, those of
    the expert for a CPU."""
    if task.device is Device.CPU:
        proposal = propose(open_subject(task), [])
        assert proposal is not None
        return dict(proposal.candidate.files)
    folder = ATTEMPTS / task.path.stem
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".cu"))
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def changed(files: dict[str, str], line: str) -> Attempt:
    """Return the attempt with `line` added at the top of each kernel source."""
    return Attempt(
        tuple((name, line * (not name.endswith(".py")) + text) for name, text in files.items())
    )


def peers_of(
    kernelbench: Path | None, cuda_agent: Path | None, names: list[str]
) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """Return functions that run another tool on an example's kernel, by (tool, example)."""
    tools = {"KernelBench": (peers.kernelbench, kernelbench)}
    tools["CUDA-Agent"] = (peers.cuda_agent, cuda_agent)
    return {
        (tool, name): partial(run, checkout, EXAMPLES / f"{name}.py", ATTEMPTS / name)
        for tool, (run, checkout) in tools.items()
        if checkout is not None
        for name in names
    }


def summary(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return cuagent's median seconds by example, without first runs, and the ratio of each other
    tool's seconds to them."""
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
