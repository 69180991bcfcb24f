"""The corpora of the verifier as data: tasks, exploits, honest candidates, seeded bugs.

A candidate is a file (or a folder with `model_new.py` and `kernels/`) that would be handed to the
judge as it is; its docstring says what it does and ends in a header of `name: value` lines. A bug
is an honest candidate with one piece of its text replaced (`bugs/`). Nothing here runs anything.

    row      of the catalogue of cheats, or "new"
    task     stem of a file in tasks/
    device   cpu or cuda
    precision  what the task admits: match where nothing is said
    threads  of OpenMP in the candidate's process: 1 where nothing is said
    timed    yes where the cheat is one of timing, or shows itself only there
    expect   reasons, one of which the verdict must give; NO_GAIN admits a verdict that accepts
             but measures no speed-up
    then     an honest candidate that must still be accepted afterwards
    apart    yes where it would end a judge that has a hole: it gets a process of its own
    harm     what it would do to a machine that does not hold it: it is run in a sandbox only
    open     for a hole or a false refusal that is known and not mended: why

A header line that begins with a space goes on with the one before.
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
"""What is expected of an honest candidate, and of a bug that is equivalent to the original."""
HEADERS = frozenset(
    (
        *("row", "task", "device", "precision", "threads", "timed", "expect", "then", "apart"),
        *("harm", "open"),
    )
)
REFUSED = "refused"
"""Any reason but acceptance and infrastructure: all that is asked of a bug."""


@dataclass(frozen=True)
class Candidate:
    """What is judged, and what must come of it."""

    name: str
    kind: str
    """exploit, honest or bug."""
    task: str
    attempt: Attempt = field(repr=False)
    what: str
    row: str = ""
    device: str = "cpu"
    precision: str = "match"
    threads: int = 1
    """Of OpenMP. Several where a race between them is what a bug is about."""
    timed: str = ""
    expect: tuple[str, ...] = (ACCEPTED,)
    then: str = ""
    apart: bool = False
    harm: str = ""
    open: str = ""
    topic: str = ""
    """Of a bug: the class of mistakes that it belongs to."""


def task_path(name: str) -> Path:
    return HERE / "tasks" / f"{name}.py"


@cache
def exploits() -> tuple[Candidate, ...]:
    return tuple(_read("exploit"))


@cache
def honest() -> tuple[Candidate, ...]:
    return tuple(_read("honest"))


@cache
def bugs() -> tuple[Candidate, ...]:
    """Raises ValueError where a mutation finds its text not exactly once."""
    known = {candidate.name: candidate for candidate in honest()}
    found: list[Candidate] = []
    for bug in BUGS:
        base = known[bug.of]
        files = dict(base.attempt.files)
        places = [name for name, text in files.items() for _ in range(text.count(bug.find))]
        if len(places) != 1:
            raise ValueError(f"{bug.of}: {bug.find!r} stands there {len(places)} times, not once")
        files[places[0]] = files[places[0]].replace(bug.find, bug.put)
        name = f"{bug.of}-{sum(other.name.startswith(f'{bug.of}-') for other in found) + 1}"
        attempt = Attempt(tuple(sorted(files.items())))
        what = bug.wrong if not bug.equivalent else f"{bug.wrong} (equivalent: {bug.equivalent})"
        expect = (ACCEPTED,) if bug.equivalent else (REFUSED,)
        changed = replace(base, name=name, kind="bug", what=what, attempt=attempt, expect=expect)
        changed = replace(changed, topic=bug.topic)
        # What is refused now and then, though right, is no excuse for a bug that is accepted.
        found.append(replace(changed, open=base.open if bug.equivalent else ""))
    return tuple(found)


def everything() -> tuple[Candidate, ...]:
    """All candidates, those that one judge serves together."""

    def order(candidate: Candidate) -> tuple[int, str, str, str, str]:
        c = candidate
        return c.threads, c.task, c.device, c.precision, c.timed

    return tuple(sorted((*exploits(), *honest(), *bugs()), key=order))


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
        harm=values.get("harm", ""),
        open=values.get("open", ""),
    )
