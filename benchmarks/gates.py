"""Run the measurements that check the timing (gates) within a time limit; a later call continues.

    python benchmarks/gates.py --device cuda --minutes 7 --out gates.json
        [--kernelbench FOLDER] [--cuda-agent FOLDER] [--only aa,delays]

Repeat the call with the same file until it reports that all is done. The parts, in order:

- `turnaround`: seconds from a changed source to verdict, timing and profile, alternating with the
  same kernel in KernelBench's eval and CUDA-Agent's scripts
- `peers`: the factor by which these other tools took longer
- `delays`: detection of a delay of 3 %
- `ladder`: the ladder's ratios compared with those of CUDA events, on KernelBench problems
- `do_bench`: the same data by do_bench and KernelBench's timing
- `aa`: the reference timed against itself

FOLDERs are checkouts that are not part of this repository; a part without its checkout reports
that. Each row is written to the file immediately. A failed step is recorded and repeated only with
`--retry`. Exit code 0: everything requested is done and every gate is passed; 1: a gate is missed;
2: more remains to be done, or the arguments are wrong; 3: all that could run is passed, and a part
lacks a prerequisite.
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
    aa_summary,
    all_ran,
    delays_found,
    delays_summary,
    few_false_positives,
    ladder_agrees,
    peers_are_slower,
    peers_summary,
    turnaround_is_short,
    turnaround_summary,
)
from slices import MORE, Part, Row, Rows, forget_failed, print_conclusion, read, run_missing_steps

from cuagent.measure.roofline.ceilings import describe
from cuagent.task import Device
from cuagent.timing import Effort

PARTS = ("turnaround", "peers", "delays", "ladder", "do_bench", "aa")
COUNTS = {"turnaround": 1, "delays": 40, "ladder": 20, "aa": 300}
"""Default number of runs of each part. In `turnaround`: runs of each other tool on each example;
cuagent runs before and after each of them."""
FOLDERS = ("problems", "kernelbench", "cuda_agent")


def main(argv: list[str] | None = None) -> int:
    """Run the missing steps of the gates; return the exit code. `argv`: arguments; None: those of
    this process."""
    argv = sys.argv[1:] if argv is None else argv
    options = _asked(argv)
    device = Device(options.device)
    try:
        found = read(options.out) or {"device": describe(device), "commands": [], "rows": {}}
    except (OSError, ValueError) as error:
        return _refused(f"{options.out}: {error}")
    if found["device"] != describe(device):
        return _refused(f"{options.out} is of {found['device']}; this is {describe(device)}")
    found["commands"].append(_command(argv, options))
    if options.retry:
        forget_failed(found)
    end = time.monotonic() + 60 * options.minutes
    parts = gates(options, device)
    run_missing_steps([part for part in parts if not part.requirement], found, options.out, end)
    return print_conclusion(parts, found)


def _refused(why: str) -> int:
    print(why, file=sys.stderr)
    return MORE


def _asked(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minutes", type=float, default=7.0, help="start no step after this time")
    parser.add_argument(
        "--out", type=Path, required=True, help="results; continued if the file exists"
    )
    parser.add_argument("--problems", type=Path, help="problem files instead of --kernelbench's")
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--only", default="", help="names of parts, separated by commas")
    parser.add_argument("--retry", action="store_true", help="repeat failed steps")
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N")
    options = parser.parse_args(argv)
    options.only = [name for name in options.only.split(",") if name] or list(PARTS)
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    for name in FOLDERS:
        if (folder := getattr(options, name)) is not None and not folder.is_dir():
            parser.error(f"--{name.replace('_', '-')}: no folder {folder}")
    return options


def _command(argv: list[str], options: argparse.Namespace) -> str:
    """Return the command line with FOLDER and FILE in place of this machine's paths."""
    own = {str(getattr(options, name)): "FOLDER" for name in FOLDERS} | {str(options.out): "FILE"}
    return " ".join(["python", "benchmarks/gates.py", *(own.get(word, word) for word in argv)])


def gates(options: argparse.Namespace, device: Device) -> list[Part]:
    """Return the parts that the options request."""
    on_cuda = device is Device.CUDA
    names = sorted(path.name for path in turnaround.ATTEMPTS.iterdir())
    jobs = turnaround.peers_of(options.kernelbench, options.cuda_agent, names) if on_cuda else {}
    problems = _problems(options)
    subjects = _subjects(options.kernelbench) if on_cuda and "do_bench" in options.only else {}
    plan = _plan(names, list(dict.fromkeys(tool for tool, _ in jobs)), options.turnaround)
    both = "" if options.kernelbench and options.cuda_agent else "--kernelbench and --cuda-agent"
    gpu = "" if on_cuda else "a GPU"
    delays, same = (partial(_against_itself, device=device, late=late) for late in (True, False))
    waits = partial(_in_turn, plan=plan, jobs=jobs, device=device)
    ladder = partial(_ladder, problems=problems, device=device)
    conditions = partial(_each, subjects)
    asks = "" if options.problems or options.kernelbench else "--kernelbench or --problems"
    parts = [
        Part("turnaround", list(plan), waits, turnaround_summary, turnaround_is_short),
        Part(
            "peers", [], _none, peers_summary, peers_are_slower, gpu or both, rows_of="turnaround"
        ),
        Part("delays", _numbers(options.delays), delays, delays_summary, delays_found),
        Part("ladder", list(problems), ladder, ladder_agreement.summary, ladder_agrees, asks),
        Part("do_bench", list(subjects), conditions, _arms_summary, all_ran, gpu),
        Part("aa", _numbers(options.aa), same, aa_summary, few_false_positives),
    ]
    return [part for part in parts if part.name in options.only]


def _problems(options: argparse.Namespace) -> dict[str, Path]:
    """Return the problem files for the part `ladder`, by name: those of `--problems`, or a
    selection of KernelBench's."""
    if "ladder" not in options.only:
        return {}
    if options.problems is not None:
        paths = ladder_agreement.problems(options.problems)[: options.ladder]
    elif options.kernelbench is not None:
        paths = ladder_agreement.selected(options.kernelbench, options.ladder)
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
    """Return the steps of the part `turnaround` by name, each as (example, tool).

    Cuagent runs before and after each run of another tool.
    """
    turns = [OURS]
    for _ in range(rounds):
        for tool in tools or [OURS]:
            turns += [tool, OURS]
    return {
        f"{name} {at} {whose}": (name, whose) for name in names for at, whose in enumerate(turns)
    }


# -- missing rows


def _in_turn(
    missing: list[str],
    plan: dict[str, tuple[str, str]],
    jobs: dict[tuple[str, str], Callable[[], Row]],
    device: Device,
) -> Rows:
    """Run the missing steps of the part `turnaround` and yield their rows.

    The judge of an example stays open for all its steps. A first run, which also opens processes,
    is not counted; its seconds are in cuagent's rows (`opening`).
    """
    for name, steps in groupby(missing, key=lambda step: plan[step][0]):
        with turnaround.judging(name, device.value) as once:
            opening = once()["all"]
            for step in steps:
                whose = plan[step][1]
                row = {"opening": opening} | once() if whose == OURS else jobs[whose, name]()
                yield row


def _against_itself(missing: list[str], device: Device, late: bool) -> Rows:
    """Yield the rows of `missing` steps: timings of the reference as its own candidate, with a
    known delay if `late`."""
    with aa.known_difference(device) as known:
        delay = known.delay() if late else {"source": known.same}
        about = {key: value for key, value in delay.items() if key != "source"}
        with closing(aa.timings(known.task, delay["source"], Effort.QUICK)) as timings:
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
    """Yield no rows, for a part that evaluates the rows of another part."""
    yield from ()


def _arms_summary(rows: list[Row]) -> str:
    return f"{sum(len(row['arms']) for row in rows)} arms under every condition"


def _numbers(count: int) -> list[str]:
    return [f"run {at}" for at in range(count)]


if __name__ == "__main__":
    sys.exit(main())
