"""The gates of timing in one command that fits a time budget and goes on where its file ends.

    python benchmarks/gates.py --device cuda --minutes 7 --out gates.json
        [--kernelbench FOLDER] [--cuda-agent FOLDER] [--only aa,delays]

Call it again with the same file until it says that all is done. The parts, in their order:
`turnaround`, the seconds from a changed source to verdict, timing and profile, in turn with the
same kernel through KernelBench's eval and CUDA-Agent's scripts; `peers`, how many times longer
those took; `delays`, whether a delay of 3 % is found; `ladder`, its ratios against a plain clock,
on KernelBench problems; `do_bench`, the same data by do_bench and KernelBench's timing; `aa`, the
reference against itself. FOLDERs are checkouts that are no part of this repository; a part that
lacks what it needs says so. Each row is in the file as soon as it is known; a step that fails is
recorded and not tried again, unless with `--retry`. Exit code 0: all that was asked for is done and
every gate holds; 1: a gate is missed; 2: there is more to do, or the call was not understood; 3:
what could be done holds, and a part lacks what it needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path

import aa
import ladder_agreement
import turnaround
from gate_verdicts import (
    OURS,
    all_ran,
    delays_found,
    ladder_agrees,
    peers_are_slower,
    quick_enough,
    rarely_called,
    said_of_aa,
    said_of_delays,
    said_of_peers,
    said_of_waits,
)
from slices import MORE, Part, Row, Rows, concluded, forget_failed, go_on, read

from cuagent.measure.roofline.ceilings import describe
from cuagent.task import Device
from cuagent.timing import Effort

PARTS = ("turnaround", "peers", "delays", "ladder", "do_bench", "aa")
COUNTS = {"turnaround": 1, "delays": 40, "ladder": 20, "aa": 300}
"""Of turnaround: how often each other tool runs on each example, ours before and after it."""
FOLDERS = ("problems", "kernelbench", "cuda_agent")


def main(argv: list[str] | None = None) -> int:
    """`argv` is what the command was given; by default that of this process."""
    argv = sys.argv[1:] if argv is None else argv
    asked = _asked(argv)
    device = Device(asked.device)
    try:
        found = read(asked.out) or {"device": describe(device), "commands": [], "rows": {}}
    except (OSError, ValueError) as error:
        return _refused(f"{asked.out}: {error}")
    if found["device"] != describe(device):
        return _refused(f"{asked.out} is of {found['device']}; this is {describe(device)}")
    found["commands"].append(_command(argv, asked))
    if asked.retry:
        forget_failed(found)
    end = time.monotonic() + 60 * asked.minutes
    parts = gates(asked, device)
    go_on([part for part in parts if not part.lacks], found, asked.out, end)
    return concluded(parts, found)


def _refused(why: str) -> int:
    print(why, file=sys.stderr)
    return MORE


def _asked(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin nothing after these")
    parser.add_argument("--out", type=Path, required=True, help="goes on where it ends")
    parser.add_argument("--problems", type=Path, help="problem files, not those of --kernelbench")
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--only", default="", help="names of parts, with commas")
    parser.add_argument("--retry", action="store_true", help="take the failed steps again")
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N")
    asked = parser.parse_args(argv)
    asked.only = [name for name in asked.only.split(",") if name] or list(PARTS)
    if unknown := [name for name in asked.only if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    for name in FOLDERS:
        if (folder := getattr(asked, name)) is not None and not folder.is_dir():
            parser.error(f"--{name.replace('_', '-')}: no folder {folder}")
    return asked


def _command(argv: list[str], asked: argparse.Namespace) -> str:
    """As it was called, without the names of this machine's folders."""
    own = {str(getattr(asked, name)): "FOLDER" for name in FOLDERS} | {str(asked.out): "FILE"}
    return " ".join(["python", "benchmarks/gates.py", *(own.get(word, word) for word in argv)])


def gates(asked: argparse.Namespace, device: Device) -> list[Part]:
    """All parts that were asked for."""
    on_cuda = device is Device.CUDA
    names = sorted(path.name for path in turnaround.ATTEMPTS.iterdir())
    jobs = turnaround.peers_of(asked.kernelbench, asked.cuda_agent, names) if on_cuda else {}
    problems = _problems(asked)
    subjects = _subjects(asked.kernelbench) if on_cuda and "do_bench" in asked.only else {}
    plan = _plan(names, list(dict.fromkeys(tool for tool, _ in jobs)), asked.turnaround)
    both = "" if asked.kernelbench and asked.cuda_agent else "--kernelbench and --cuda-agent"
    gpu = "" if on_cuda else "a GPU"
    delays, same = (partial(_against_itself, device=device, late=late) for late in (True, False))
    waits = partial(_in_turn, plan=plan, jobs=jobs, device=device)
    ladder = partial(_ladder, problems=problems, device=device)
    conditions = partial(_each, subjects)
    asks = "" if asked.problems or asked.kernelbench else "--kernelbench or --problems"
    parts = [
        Part("turnaround", list(plan), waits, said_of_waits, quick_enough),
        Part("peers", [], _none, said_of_peers, peers_are_slower, gpu or both, of="turnaround"),
        Part("delays", _numbers(asked.delays), delays, said_of_delays, delays_found),
        Part("ladder", list(problems), ladder, ladder_agreement.said, ladder_agrees, asks),
        Part("do_bench", list(subjects), conditions, _said_of_arms, all_ran, gpu),
        Part("aa", _numbers(asked.aa), same, said_of_aa, rarely_called),
    ]
    return [part for part in parts if part.name in asked.only]


def _problems(asked: argparse.Namespace) -> dict[str, Path]:
    """By name: those of a folder of one's own, else a selection out of KernelBench."""
    if "ladder" not in asked.only:
        return {}
    if asked.problems is not None:
        paths = ladder_agreement.problems(asked.problems)[: asked.ladder]
    elif asked.kernelbench is not None:
        paths = ladder_agreement.picked(asked.kernelbench, asked.ladder)
    else:
        return {}
    return {f"{path.parent.name}/{path.name}": path for path in paths}


def _subjects(kernelbench: Path | None) -> dict[str, Callable[[], Row]]:
    import against_do_bench

    def compared(subject: against_do_bench.Subject) -> Row:
        with against_do_bench.opened(subject) as task:
            return {"arms": against_do_bench.compared(task, subject.arms, kernelbench)}

    return {s.name: partial(compared, s) for s in against_do_bench.SUBJECTS}


def _plan(names: list[str], tools: list[str], rounds: int) -> dict[str, tuple[str, str]]:
    """Steps of turnaround, each an example and whose turn it is: ours before and after theirs."""
    turns = [OURS]
    for _ in range(rounds):
        for tool in tools or [OURS]:
            turns += [tool, OURS]
    return {
        f"{name} {at} {whose}": (name, whose) for name in names for at, whose in enumerate(turns)
    }


# -- the rows that are missing


def _in_turn(
    missing: list[str],
    plan: dict[str, tuple[str, str]],
    jobs: dict[tuple[str, str], Callable[[], Row]],
    device: Device,
) -> Rows:
    """Ours with a judge that stays open for an example; its first run opens what stays too."""
    for name, steps in groupby(missing, key=lambda step: plan[step][0]):
        with turnaround.judging(name, device.value) as once:
            opening = once()["all"]
            for step in steps:
                whose = plan[step][1]
                row = {"opening": opening} | once() if whose == OURS else jobs[whose, name]()
                yield row


def _against_itself(missing: list[str], device: Device, late: bool) -> Rows:
    """The reference as its own candidate, with a known delay if `late`."""
    with aa.known(device) as ours:
        delay = ours.delay() if late else {"source": ours.same}
        about = {key: value for key, value in delay.items() if key != "source"}
        with closing(aa.timings(ours.task, delay["source"], Effort.QUICK)) as timings:
            for _ in missing:
                row = next(timings)
                yield row | {"delay": about} if late else row


def _ladder(missing: list[str], problems: dict[str, Path], device: Device) -> Rows:
    ladder_agreement.warm([problems[step] for step in missing], device)
    for step in missing:
        yield ladder_agreement.compared(problems[step], device)


def _each(jobs: dict[str, Callable[[], Row]], missing: list[str]) -> Rows:
    for step in missing:
        yield jobs[step]()


def _none(missing: list[str]) -> Rows:
    """Of a part that reads another's rows."""
    yield from ()


def _said_of_arms(rows: list[Row]) -> str:
    return f"{sum(len(row['arms']) for row in rows)} arms under every condition"


def _numbers(count: int) -> list[str]:
    return [f"run {at}" for at in range(count)]


if __name__ == "__main__":
    sys.exit(main())
