"""Read the verifier's corpora as data: tasks, exploits, honest candidates, seeded bugs.

A candidate is a file, or a folder with `model_new.py` and `kernels/`, in the form that the judge
takes. Its docstring describes it and ends in a header of `name: value` lines. A bug is an honest
candidate with one piece of its text replaced (`bugs/`). This module runs no candidate.

    row        row in the catalogue of cheats, or "new"
    task       stem of a file in tasks/
    device     cpu (default) or cuda
    precision  precision that the task admits; default: match
    threads    OpenMP threads of the candidate's process; default: 1
    timed      yes if the candidate cheats in timing, or shows its fault only while timed
    expect     allowed reasons of the verdict; NO_GAIN also allows a verdict that accepts without
               a measured speedup
    then       an honest candidate that must be accepted afterwards
    apart      yes if the candidate could end a judge that has a hole: it gets a separate process
    host       yes if the cheat needs tensors in the host's memory: it has no effect on a GPU
    harm       damage to a machine without a sandbox: the candidate runs in a sandbox only
    open       reason of a known hole or false rejection that is not fixed

A header line that begins with a space continues the line above.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from bugs import BUGS

from cuagent.attempt import MODULE, Attempt, freeze

HERE = Path(__file__).parent
NO_GAIN = "no gain"
ACCEPTED = "accepted"
"""Expected result of an honest candidate, and of a bug that is equivalent to the original."""
HEADERS = frozenset(
    (
        *("row", "task", "device", "precision", "threads", "timed", "expect", "then", "apart"),
        *("host", "harm", "open"),
    )
)
REFUSED = "refused"
"""Any reason except acceptance and infrastructure: the expected result of a bug."""


@dataclass(frozen=True)
class Candidate:
    """An attempt to judge, and the result that it must get."""

    name: str
    kind: str
    """"exploit", "honest" or "bug"."""
    task: str
    attempt: Attempt = field(repr=False)
    what: str
    row: str = ""
    device: str = "cpu"
    precision: str = "match"
    threads: int = 1
    """OpenMP threads; more than one if a bug is a race between them."""
    timed: str = ""
    expect: tuple[str, ...] = (ACCEPTED,)
    then: str = ""
    apart: bool = False
    host: bool = False
    harm: str = ""
    open: str = ""
    topic: str = ""
    """Class of mistakes of a bug; empty for other kinds."""
    moved: bool = False
    """True if a candidate for the CPU is judged on the GPU (`moved_to_cuda`)."""


def task_path(name: str) -> Path:
    """Return the file of a task, given its stem."""
    return HERE / "tasks" / f"{name}.py"


@cache
def exploits() -> tuple[Candidate, ...]:
    return tuple(_read("exploit"))


@cache
def honest() -> tuple[Candidate, ...]:
    return tuple(_read("honest"))


@cache
def bugs() -> tuple[Candidate, ...]:
    """Return the seeded bugs. Raises ValueError if a text to replace is not there once."""
    originals = {candidate.name: candidate for candidate in honest()}
    found: list[Candidate] = []
    for bug in BUGS:
        base = originals[bug.of]
        files = dict(base.attempt.files)
        places = [name for name, text in files.items() for _ in range(text.count(bug.find))]
        if len(places) != 1:
            raise ValueError(f"{bug.of}: {bug.find!r} occurs {len(places)} times instead of once")
        files[places[0]] = files[places[0]].replace(bug.find, bug.put)
        name = f"{bug.of}-{sum(other.name.startswith(f'{bug.of}-') for other in found) + 1}"
        attempt = Attempt(tuple(sorted(files.items())))
        what = bug.wrong if not bug.equivalent else f"{bug.wrong} (equivalent: {bug.equivalent})"
        expect = (ACCEPTED,) if bug.equivalent else (REFUSED,)
        changed = replace(base, name=name, kind="bug", what=what, attempt=attempt, expect=expect)
        changed = replace(changed, topic=bug.topic)
        # A known false rejection of the original does not excuse a bug that is accepted.
        known = bug.open or (base.open if bug.equivalent else "")
        found.append(replace(changed, open=known))
    return tuple(found)


def everything() -> tuple[Candidate, ...]:
    """Return all candidates, grouped so that one judge serves neighbours."""
    return tuple(sorted((*exploits(), *honest(), *bugs()), key=judge_order))


def judge_order(candidate: Candidate) -> tuple[int, str, str, str, str]:
    """Return the sort key that groups candidates by the judge that serves them."""
    c = candidate
    return c.threads, c.task, c.device, c.precision, c.timed


def needs_cpu(candidate: Candidate) -> bool:
    """True if the candidate has a C++ source, which runs on the CPU only, or cheats there only."""
    return candidate.host or any(name.endswith(".cpp") for name, _ in candidate.attempt.files)


def moved_to_cuda(candidate: Candidate) -> Candidate:
    """Return a candidate for the CPU as one for the GPU.

    A cheat may fail for another reason there, so any rejection is right for an exploit, and for a
    cheat of timing also a measurement without a gain.
    """
    expect = candidate.expect
    if ACCEPTED not in expect:
        more = (REFUSED, NO_GAIN) if candidate.timed else (REFUSED,)
        expect = tuple(dict.fromkeys((*expect, *more)))
    return replace(candidate, device="cuda", expect=expect, moved=True)


def with_default_cuda(candidate: Candidate) -> Candidate:
    """Return a moved candidate whose new tensors are on the GPU unless it names a device."""
    files = dict(candidate.attempt.files)
    lines = files[MODULE].splitlines(keepends=True)
    first = next(
        node
        for node in ast.parse(files[MODULE]).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    )
    at = first.lineno - 1
    lines[at:at] = ["import torch as _torch\n", '_torch.set_default_device("cuda")\n']
    attempt = Attempt(tuple(sorted({**files, MODULE: "".join(lines)}.items())))
    return replace(candidate, attempt=attempt)


def _read(kind: str) -> Iterator[Candidate]:
    folder = HERE / (f"{kind}s" if kind == "exploit" else kind)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" or (path / MODULE).is_file():
            yield _candidate(path, kind)


def _candidate(path: Path, kind: str) -> Candidate:
    attempt = freeze(path)
    text = ast.get_docstring(ast.parse(dict(attempt.files)[MODULE])) or ""
    what, _, header = text.rpartition("\n\n")
    values = dict(line.split(": ", 1) for line in header.replace("\n ", " ").splitlines())
    unknown = values.keys() - HEADERS
    if unknown or not task_path(values["task"]).is_file():
        raise ValueError(f"{path}: {unknown or values['task']}")
    return Candidate(
        name=path.stem,
        kind=kind,
        task=values["task"],
        attempt=attempt,
        what=" ".join(what.split()),
        row=values.get("row", ""),
        device=values.get("device", "cpu"),
        precision=values.get("precision", "match"),
        threads=int(values.get("threads", "1")),
        timed=values.get("timed", ""),
        expect=tuple(values.get("expect", ACCEPTED).split(", ")),
        then=values.get("then", ""),
        apart=values.get("apart") == "yes",
        host=values.get("host") == "yes",
        harm=values.get("harm", ""),
        open=values.get("open", ""),
    )
