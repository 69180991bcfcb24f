"""The gates of timing in one command that fits a time budget and goes on where its file ends.

    python benchmarks/gates.py --device cuda --minutes 7 --out gates.json
        [--problems FOLDER] [--kernelbench FOLDER] [--cuda-agent FOLDER] [--only aa,delays]

Call it again with the same file until it says that all is done. The parts, in their order:
`turnaround`, the seconds from a changed source to verdict, timing and profile; `peers`, the same
kernels through KernelBench's eval and CUDA-Agent's scripts, one at a time, on the same machine;
`delays`, whether a delay of 3 % is found; `ladder`, its ratios against a plain clock, on problem
files of the KernelBench form; `do_bench`, the same data by do_bench and KernelBench's timing; `aa`,
the reference against itself. FOLDERs are checkouts that are no part of this repository; a part that
lacks what it needs says so. Each row is in the file as soon as it is known. Exit code 0: all that
was asked for is done and every gate holds; 1: a gate is missed; 2: there is more to do, or the call
was not understood; 3: what could be done holds, and a part lacks what it needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aa
import ladder_agreement
import turnaround
from ladder_agreement import WITHIN

from cuagent.measure.ceilings import describe
from cuagent.measure.timing import Effort, Standing
from cuagent.task import Device

Row = dict[str, Any]
Rows = Generator[Row, None, None]
PARTS = ("turnaround", "peers", "delays", "ladder", "do_bench", "aa")
RUNS = {"turnaround": 4, "delays": 40, "ladder": 20, "aa": 300}
"""Of turnaround: changes of each example, of which the first also opens torch.compile's process."""
FOUND, FALSE, SLOWEST_S, QUICKER = 0.95, 0.01, 8.0, 10.0
DONE, MISSED, MORE, LACKING = range(4)


@dataclass(frozen=True)
class Part:
    """One kind of row, how to get those that are still missing, and what they say together."""

    name: str
    rows: Callable[[list[Row]], Rows]
    """Given the rows that are there; ends when there is nothing left to do."""
    said: Callable[[list[Row]], str]
    held: Callable[[list[Row]], bool]
    lacks: str = ""
    """What it needs and was not given."""


def main() -> int:
    asked = _asked()
    device = Device(asked.device)
    found = _read(asked.out) or {"device": describe(device), "commands": [], "rows": {}}
    if found["device"] != describe(device):
        sys.exit(f"{asked.out} is of {found['device']}; this is {describe(device)}")
    found["commands"].append(" ".join(["python", *sys.argv]))
    end = time.monotonic() + 60 * asked.minutes
    chosen = gates(asked, device, found["rows"])
    parts = [part for part in chosen if not part.lacks]
    unfinished = [part.name for part in parts if not _go_on(part, found, asked.out, end)]
    for part in chosen:
        rows = found["rows"].get(part.name, [])
        what = f"needs {part.lacks}" if part.lacks else part.said(rows) if rows else "not begun"
        print(f"{part.name:<11}{what}" + "; there is more to do" * (part.name in unfinished))
    if unfinished:
        return MORE
    if not all(part.held(found["rows"][part.name]) for part in parts):
        return MISSED
    return DONE if parts == chosen else LACKING


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin nothing after these")
    parser.add_argument("--out", type=Path, required=True, help="goes on where it ends")
    parser.add_argument("--problems", type=Path, help="KernelBench problem files")
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--only", default="", help="names of parts, with commas")
    for name, count in RUNS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N")
    asked = parser.parse_args()
    asked.only = [name for name in asked.only.split(",") if name] or list(PARTS)
    if unknown := [name for name in asked.only if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    return asked


def _go_on(part: Part, found: dict[str, Any], out: Path, end: float) -> bool:
    """Get rows until there are all or the time is over. Whether there are all."""
    rows = found["rows"].setdefault(part.name, [])
    with closing(part.rows(list(rows))) as more:
        while time.monotonic() < end:
            begun = time.monotonic()
            row = next(more, None)
            if row is None:
                return True
            rows.append(row)
            _write(out, found)
            print(f"{part.name} {len(rows)}: {time.monotonic() - begun:.1f} s", flush=True)
    return False


def gates(asked: argparse.Namespace, device: Device, rows: dict[str, list[Row]]) -> list[Part]:
    """All parts that were asked for; `rows` are all that are known, of every part."""
    on_cuda = device is Device.CUDA
    names = sorted(path.name for path in turnaround.ATTEMPTS.iterdir())
    jobs = turnaround.peers_of(asked.kernelbench, asked.cuda_agent, names)
    effort = Effort.QUICK
    gpu = "" if on_cuda else "a GPU"
    parts = [
        Part(
            "turnaround",
            lambda done: _turnaround(done, names, asked.turnaround, device),
            lambda all_: f"median {_waits(all_)[1]:.1f} s ({SLOWEST_S:.0f} are allowed)",
            lambda all_: _waits(all_)[1] <= SLOWEST_S,
        ),
        Part(
            "peers",
            lambda done: _peers(done, jobs),
            lambda all_: _said_of_peers(all_, rows.get("turnaround", [])),
            lambda all_: min(_quicker(all_, rows.get("turnaround", [])), default=0.0) >= QUICKER,
            gpu or ("" if jobs else "--kernelbench or --cuda-agent"),
        ),
        Part(
            "delays",
            lambda done: _late(done, asked.delays, device, effort),
            lambda all_: f"{_called(all_, Standing.SLOWER)} of {len(all_)} delays of 3 % found",
            lambda all_: _called(all_, Standing.SLOWER) >= FOUND * len(all_),
        ),
        Part(
            "ladder",
            lambda done: _ladder(done, asked.problems, asked.ladder, device),
            ladder_agreement.said,
            lambda all_: max(ladder_agreement.differences(all_), default=1.0) <= WITHIN,
            "" if asked.problems else "--problems",
        ),
        Part(
            "do_bench",
            lambda done: _do_bench(done, asked.kernelbench),
            lambda all_: f"{len(all_)} arms under every condition",
            lambda all_: True,
            gpu,
        ),
        Part(
            "aa",
            lambda done: _same(done, asked.aa, device, effort),
            _said_of_aa,
            lambda all_: _wrong(all_) <= FALSE * len(all_),
        ),
    ]
    return [part for part in parts if part.name in asked.only]


# -- the rows that are missing


def _turnaround(done: list[Row], names: list[str], runs: int, device: Device) -> Rows:
    """A judge's runs belong together: an example that was broken off is taken again."""
    for name in names:
        if sum(row["example"] == name for row in done) < runs:
            yield from turnaround.judged(name, runs, device.value)


def _peers(done: list[Row], jobs: dict[tuple[str, str], Callable[[], Row]]) -> Rows:
    known = {(row["tool"], row["example"]) for row in done}
    for key, job in jobs.items():
        if key not in known:
            yield job()


def _late(done: list[Row], runs: int, device: Device, effort: Effort) -> Rows:
    if len(done) >= runs:
        return
    with aa.known(device) as ours:
        delay = ours.delay()
        about = {key: value for key, value in delay.items() if key != "source"}
        with closing(aa.timings(ours.task, delay["source"], effort)) as timings:
            for _ in range(runs - len(done)):
                yield next(timings) | {"delay": about}


def _same(done: list[Row], runs: int, device: Device, effort: Effort) -> Rows:
    if len(done) >= runs:
        return
    with (
        aa.known(device) as ours,
        closing(aa.timings(ours.task, ours.same, effort)) as timings,
    ):
        for _ in range(runs - len(done)):
            yield next(timings)


def _ladder(done: list[Row], folder: Path, most: int, device: Device) -> Rows:
    known = {row["problem"] for row in done}
    wanted = ladder_agreement.problems(folder)[:most]
    missing = [path for path in wanted if path.name not in known]
    ladder_agreement.warm(missing, device)
    for path in missing:
        yield ladder_agreement.compared(path, device)


def _do_bench(done: list[Row], kernelbench: Path | None) -> Rows:
    import against_do_bench

    known = {(row["task"], str(row["inputs"])) for row in done}
    for task, arms in against_do_bench.subjects():
        if (task.name, str(against_do_bench.shapes(task))) not in known:
            yield from against_do_bench.compared(task, arms, kernelbench)


# -- what rows say together


def _waits(rows: list[Row]) -> tuple[dict[str, float], float]:
    """Median seconds of each example over the runs after the first, and the median of those."""
    waits = {
        name: median(row["all"] for row in rows if row["example"] == name and row["run"] > 0)
        for name in dict.fromkeys(row["example"] for row in rows if row["run"] > 0)
    }
    return waits, median(waits.values()) if waits else float("nan")


def _quicker(rows: list[Row], ours: list[Row]) -> list[float]:
    """Median, over the examples, of how many times longer each tool takes than we."""
    waits = _waits(ours)[0]
    of_tools = (
        [row["seconds"]["all"] / waits[row["example"]] for row in rows if row["tool"] == tool]
        for tool in dict.fromkeys(row["tool"] for row in rows)
        if waits
    )
    return [median(times) for times in of_tools if times]


def _said_of_peers(rows: list[Row], ours: list[Row]) -> str:
    tools = dict.fromkeys(row["tool"] for row in rows)
    pairs = zip(tools, _quicker(rows, ours), strict=False)
    said = ", ".join(f"{tool} takes {times:.1f} times as long" for tool, times in pairs)
    return said or "ours are not timed"


def _called(rows: list[Row], word: Standing) -> int:
    return sum(row["standing"] == word for row in rows)


def _wrong(rows: list[Row]) -> int:
    """A/A runs that did not end as they should: called, contradicted or failed."""
    return sum(
        row["standing"] != Standing.INCONCLUSIVE or bool(row["contradiction"]) for row in rows
    )


def _said_of_aa(rows: list[Row]) -> str:
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    busy = median(row["busy"] for row in rows)
    middle = f", median ratio {median(ratios):.4f}" if ratios else ""
    return f"{_wrong(rows)} of {len(rows)} called{middle}, {busy:.0%} of the processors by others"


# -- the file


def _read(out: Path) -> dict[str, Any] | None:
    return json.loads(out.read_text()) if out.exists() else None


def _write(out: Path, found: dict[str, Any]) -> None:
    """Whole or not at all: the command may be killed at any moment."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(out)


if __name__ == "__main__":
    sys.exit(main())
