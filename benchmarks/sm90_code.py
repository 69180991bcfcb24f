"""Compile the expert's GPU kernels of many problems for sm_90 without a GPU, and print figures.

    python benchmarks/sm90_code.py FOLDER ... --out FILE [--match WORD] [--options NAME ...]
        [--jobs 2] [--report] [--capability 8.9]

FOLDER contains problems, as for `first_plans.py`. Candidates are planned for an H200 with the first
options and those that the search tries next. FILE gets a JSON line for each compiled kernel of each
source: registers, local memory, shared memory, occupancy, widths of accesses, tensor core
instructions, seconds of the compiler. Sources that FILE has are not compiled again. `--report`
prints the tables of FILE alone. `--capability` compiles for another GPU; occupancies stay those of
an H200. Needs nvcc and Triton, whose version decides the code: use the one
of the GPU's torch. Nothing is timed on a GPU, and results are not checked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from first_plans import (
    H200,
    LIMIT_S,
    family_of,
    limit,
    number_of,
    observed_plans,
    unwritten_tensors,
)
from sm90_compilers import HOPPER, Compiled, Source, compiled
from sm90_figures import SHARED_OF_BLOCK, SHARED_OF_OTHERS, occupancy

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.method import TritonCall
from cuagent.expert.products.expressions import functions_of
from cuagent.expert.products.triton import header
from cuagent.task import load_task

VARIANTS: dict[str, dict[str, Any]] = {
    "first": {},
    "tiles 1": {"tiles": 1},
    "tiles 2": {"tiles": 2},
    "not split": {"split": False},
    "exact convolutions": {"exact_convolutions": True},
    "tf32 few channels": {"tf32_few_channels": True},
    "every convolution": {"convolutions": "every"},
    "library convolutions": {"convolutions": "library"},
    "own attention": {"own_attention": True},
    "small products": {"small_products": True},
    "stacked weights": {"merge": True},
    "threads 128": {"threads": 128},
    "threads 256": {"threads": 256},
    "threads 512": {"threads": 512},
    "scalar": {"vector": False},
}
"""Options of the candidates by name: those that `search.choices` tries on a GPU."""
LOW_OCCUPANCY = 0.25
SLOW_COMPILE_S = 20.0
GRAVE = (
    "does not compile", "too much shared memory", "spills", "array in local memory",
    "low occupancy", "no tensor cores",
)  # fmt: skip
"""Faults for which a kernel is printed."""
COMPUTE = ("product", "convolution", "attention", "attentionstep", "recurrences", "loops")
"""Families whose kernels are not bound by memory, or hold their state in registers."""


def main() -> None:
    """Plan, compile, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--match", default="", help="only files whose path contains this")
    parser.add_argument("--options", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    parser.add_argument("--report", action="store_true", help="print the tables alone")
    parser.add_argument("--capability", default="9.0", help="of the GPU, such as 8.9")
    given = parser.parse_args()
    major, _, minor = given.capability.partition(".")
    target = replace(H200, capability=(int(major), int(minor)))
    lines = _read(given.out)
    if not given.report:
        _compile_all(given.folders, given.match, given.options, given.out, given.jobs, target)
        lines = _read(given.out)
    uses = _read(given.out.with_suffix(".uses"))
    report(uses, lines)


def _compile_all(
    folders: list[Path], match: str, options: list[str], out: Path, jobs: int, target: Target
) -> None:
    """Plan all candidates, and compile what `out` does not contain while others are planned."""
    done = {line["digest"] for line in _read(out)}
    uses = out.with_suffix(".uses")
    running: dict[Future[list[Compiled]], Source] = {}
    # Processes that are forked by a process with torch's threads may hang.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    with out.open("a") as file, pool:

        def write(futures: Iterable[Future[list[Compiled]]]) -> None:
            for future in futures:
                for line in lines_of(running.pop(future), future.result()):
                    file.write(json.dumps(line) + "\n")
                file.flush()

        for use in _planned(folders, match, options, uses, target):
            source = Source(**use["source"])
            if source.digest not in done:
                done.add(source.digest)
                running[pool.submit(compiled, source)] = source
            write([future for future in running if future.done()])
        print(f"planned; {len(running)} kernels to compile", flush=True)
        write(as_completed(list(running)))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _planned(
    folders: list[Path], match: str, options: list[str], uses: Path, target: Target
) -> Iterator[dict[str, Any]]:
    """Yield the use of each generated kernel of each problem, with its source. Uses of an earlier
    run are read from the file `uses`, and new ones are added to it."""
    known = _read(uses)
    yield from (use for use in known if "source" in use)
    planned = {(use["problem"], use["options"]) for use in known}
    for folder in folders:
        for path in sorted(folder.rglob("*.py"), key=lambda p: (p.parent, number_of(p))):
            problem = f"{path.parent.name}/{path.stem}"
            names = [name for name in options if (problem, name) not in planned]
            if match not in str(path) or not names:
                continue
            try:
                found = _of_problem(path, problem, names, target)
            except Exception as error:  # noqa: BLE001 - the module is foreign code
                print(f"{problem}: {type(error).__name__}: {str(error)[:100]}", flush=True)
                continue
            with uses.open("a") as file:
                file.writelines(json.dumps(use) + "\n" for use in found)
            yield from (use for use in found if "source" in use)


def _of_problem(
    path: Path, problem: str, options: list[str], target: Target
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    # Some modules print when they are imported or called.
    with limit(LIMIT_S * 5), redirect_stdout(sys.stderr):
        with unwritten_tensors():
            subject = open_subject(load_task(f"{path}:Model", device="cpu"))
        subject = replace(subject, target=target)
        for name in options:
            plans: list[Any] = []
            with observed_plans(plans):
                make_candidate(subject, replace(Options(), **VARIANTS[name]))
            about = {"problem": problem, "options": name}
            found.append(about)
            for plan in plans:
                for position, call in plan.calls.items():
                    source = replace(_source(call, plan.graph), capability=target.capability)
                    use = {"digest": source.digest, "source": asdict(source)}
                    found.append(about | {"family": family_of(plan.steps[position])} | use)
    return found


def _source(call: Any, graph: Any) -> Source:
    if not isinstance(call, TritonCall):
        return Source("cuda", call.name, call.text, call.headers)
    step = call.step
    words = [*(f"out_{k}" for k in range(len(step.outputs)))]
    words += [f"tensor_{k}" for k in range(len(step.tensors))]
    nodes = [graph.node(name) for name in (*step.outputs, *step.tensors)]
    dtypes = [*(n.dtype for n in nodes[: len(step.outputs)]), *step.tensors.values()]
    tensors = tuple(zip(words, dtypes, (tuple(n.shape) for n in nodes), strict=True))
    launch = call.launch(call.name, arguments=words)
    lines = [*header([call.text]), *functions_of([call.text]), call.text]
    return Source("triton", call.name, "\n".join(lines), (), tuple(launch), tensors)


def lines_of(source: Source, found: list[Compiled]) -> Iterator[dict[str, Any]]:
    """Yield the JSON line of each compiled kernel."""
    for one in found:
        line = {"digest": source.digest, "language": source.language, **asdict(one)}
        line["capability"] = source.capability
        own = source.text.partition(f"def {one.code.name}(")[2] if one.code else ""
        line["dots"] = "tl.dot(" in own.partition("@triton.jit")[0]
        if one.code is not None:
            shared = one.code.static_shared + one.dynamic_shared
            blocks, share = occupancy(one.threads, one.code.registers, shared)
            line |= {"shared": shared, "blocks": blocks, "occupancy": share}
        yield line


def faults_of(line: dict[str, Any], family: str) -> list[str]:
    """Return the faults and suspicious figures of a compiled kernel, in words."""
    if line["error"]:
        return ["does not compile"]
    code, found = line["code"], []
    capability = tuple(line.get("capability", HOPPER))
    if line["shared"] > SHARED_OF_BLOCK.get(capability, SHARED_OF_OTHERS):
        found.append("too much shared memory")
    if code["stack"] > code["arrays"]:
        found.append("spills")
    if code["arrays"]:
        found.append("array in local memory")
    if line["occupancy"] < LOW_OCCUPANCY and family not in COMPUTE:
        found.append("low occupancy")
    if family in ("product", "convolution") and not code["tensor_core"] and line["dots"]:
        found.append("no tensor cores")
    wide = {"16", "8", 16, 8}
    if not wide & {*code["loads"], *code["stores"]} and not code["blocks_copied"]:
        found.append("only accesses of at most 4 bytes")
    if line["seconds"] > SLOW_COMPILE_S:
        found.append("slow to compile")
    return found


def report(uses: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
    """Print the numbers of kernels and faults by family, then each kernel with a grave fault."""
    families: dict[str, Counter[str]] = {}
    problems: dict[tuple[str, str], set[str]] = {}
    users: dict[str, dict[str, Any]] = {}
    for use in (use for use in uses if "digest" in use):
        users.setdefault(use["digest"], {"family": use["family"], "by": []})
        users[use["digest"]]["by"].append(f"{use['problem']} ({use['options']})")
    known = [line for line in lines if line["digest"] in users]
    for line in known:
        family, by = users[line["digest"]].values()
        counts = families.setdefault(family, Counter())
        names = {user.partition(" (")[0] for user in by}
        for fault in ("kernels", *faults_of(line, family)):
            counts[fault] += 1
            problems.setdefault((family, fault), set()).update(names)
    print("Kernels, and in parentheses the problems that use them")
    for family, counts in sorted(families.items()):
        words = [f"{n} {fault} ({len(problems[family, fault])})" for fault, n in counts.items()]
        print(f"{family}: {', '.join(words)}")
    for line in known:
        family, by = users[line["digest"]].values()
        faults = [fault for fault in faults_of(line, family) if fault in GRAVE]
        if faults:
            print(f"{', '.join(faults)}: {_described(line)}; {len(by)} uses: {', '.join(by[:3])}")


def _described(line: dict[str, Any]) -> str:
    if line["error"]:
        return f"{line['options']}: {line['error'].splitlines()[0]}"
    code = line["code"]
    return (
        f"{code['name']} {line['options']}: {code['registers']} registers, "
        f"{code['stack'] - code['arrays']} B spilled, {code['arrays']} B of arrays, "
        f"{line['shared']} B shared, {line['occupancy']:.0%} of the warps"
    )


if __name__ == "__main__":
    sys.exit(main())
