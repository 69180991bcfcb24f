"""A gate before a claim: the candidate under NVIDIA's compute-sanitizer, where it is installed.

It finds what no output shows: accesses past a buffer that the candidate allocated itself, races in
shared memory, reads of memory never written. It runs beside the candidate, so it finds mistakes and
not lies, and a clean report is no proof. One call on the task's own inputs per tool, 10 to 100
times slower than usual, with torch's caching allocator off, since accesses inside its pool are
legal to the driver.

Invariant: a race or an unwritten read refuses an attempt only in a kernel of its own; libraries are
known to read padding that nobody wrote. An access out of bounds counts whoever's kernel made it. A
tool that could not run says nothing. What does not refuse is a note.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build import Build, environment
from cuagent.sandbox import Policy, SandboxError, Tier, wrap
from cuagent.task import Device
from cuagent.verdict import Reason, Verdict
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.referee import Referee
from cuagent.worker.fork_server import kept_environment

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 99
"""Exit code that the tool is told to leave with when it found something."""
DEADLINE_S = 120.0
LOOK_S = 0.05
LINES = 12
"""Of a report that are shown."""
MOST_READ = 1 << 20
PROGRAM = Path(__file__).parents[1] / "worker" / "single.py"
TRAMPOLINE = "/usr/bin/env"
"""What the tool is told to start. It asks access() first, which says no for an interpreter in a
closed home, although the capability that the sandbox leaves lets it be executed."""
INVALID = "Invalid __"
"""An access that the driver would refuse is a fault whoever's kernel was told to make it."""
MISSING = "compute-sanitizer is not installed: memory that the candidate allocates is not checked"

_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*\)")
_NAME = re.compile(r"(\w+)\s*\(")
_TRITON = re.compile(r"@triton\.jit\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)")
_HEAD = 240
"""Characters after `__global__` in which a kernel's name is looked for."""


class Outcome(StrEnum):
    """What a tool says of a candidate."""

    CLEAN = "clean"
    FAULTY = "faulty"
    """It names a kernel that the attempt defines."""
    ELSEWHERE = "found something in no kernel of the attempt's own"
    UNKNOWN = "could not run"


@dataclass(frozen=True)
class Report:
    """What one tool said."""

    tool: str
    outcome: Outcome
    text: str = ""
    """Its first findings, a few lines; or why it could not say."""


def sanitizer() -> Path | None:
    """compute-sanitizer of the toolkit or of the package on PyPI; None where there is neither."""
    if found := shutil.which("compute-sanitizer"):
        return Path(found).resolve()
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        places += sorted(Path(root).glob("*/compute-sanitizer"))
    programs = [place / "compute-sanitizer" for place in places]
    return next((p.resolve() for p in programs if os.access(p, os.X_OK)), None)


def gated(referee: Referee, attempt: Attempt, build: Build, verdict: Verdict) -> Verdict:
    """The verdict after the tools: refused for a fault in the attempt's own kernels, else noted.

    Raises OracleLost, TaskError.
    """
    if referee.task.device is not Device.CUDA or not verdict.accepted:
        return verdict
    if sanitizer() is None:
        return replace(verdict, notes=(*verdict.notes, MISSING))
    reports = sanitize(referee, attempt, build)
    for report in reports:
        if report.outcome is Outcome.FAULTY:
            return replace(
                verdict,
                accepted=False,
                reason=Reason.MEMORY_FAULT,
                detail=f"{report.tool}: {report.text.splitlines()[0]}",
                output=report.text,
            )
    return replace(verdict, notes=(*verdict.notes, *map(_note, reports)))


def sanitize(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    tools: Sequence[str] = TOOLS,
    deadline_s: float = DEADLINE_S,
) -> tuple[Report, ...]:
    """One report for each tool, up to the first that finds a fault.

    Empty where there is no CUDA task, no tool, or nothing built. Raises OracleLost, TaskError.
    """
    program = sanitizer()
    if program is None or referee.task.device is not Device.CUDA or not build.ok:
        return ()
    folder = Path(tempfile.mkdtemp(prefix="sanitize-", dir=referee.folder))
    try:
        lay_down(referee, attempt, folder)
        reports: list[Report] = []
        for tool in tools:
            command = sandboxed(program, tool, folder, build, referee.tier)
            reports.append(read(tool, *run(command, folder, deadline_s), own_kernels(attempt)))
            if reports[-1].outcome in (Outcome.FAULTY, Outcome.UNKNOWN):
                break
        return tuple(reports)
    except SandboxError as error:
        return (Report(tools[0], Outcome.UNKNOWN, str(error)),)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_kernels(attempt: Attempt) -> frozenset[str]:
    """Names of the kernels in the attempt's text: CUDA's, in strings too, and Triton's."""
    names: set[str] = set()
    for _, text in attempt.files:
        names.update(match[1] for match in _TRITON.finditer(text))
        for match in re.finditer("__global__", text):
            head = _BOUNDS.sub(" ", text[match.end() : match.end() + _HEAD])
            if found := _NAME.search(head):
                names.add(found[1])
    return frozenset(names)


def read(tool: str, status: int | None, text: str, own: frozenset[str]) -> Report:
    """What a tool's exit status (None: past its deadline) and text amount to."""
    if status is None:
        return Report(tool, Outcome.UNKNOWN, "not done in time")
    if status == FOUND:
        named = not own.isdisjoint(re.findall(r"\w+", text))
        outcome = Outcome.FAULTY if named or INVALID in text else Outcome.ELSEWHERE
        return Report(tool, outcome, _shown(text))
    summary = _SUMMARY.search(text)
    # A tool that never saw a kernel says no such thing, and may leave with 0 all the same.
    if status == 0 and summary is not None and summary[1] == "0":
        return Report(tool, Outcome.CLEAN)
    return Report(tool, Outcome.UNKNOWN, _shown(text) or f"it left with exit status {status}")


def sandboxed(program: Path, tool: str, folder: Path, build: Build, tier: Tier) -> list[str]:
    """The command line that runs `single.py` on a folder under a tool, held as a worker is."""
    command = [
        str(program),
        *("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"),
        # torch asks the driver for much that some machines lack, and goes on without.
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
        *(TRAMPOLINE, sys.executable, "-I", "-B", str(PROGRAM), str(folder)),
    ]
    policy = Policy(
        read=(program.parents[1], PROGRAM.parents[1], *(x.path for x in build.libraries)),
        write=(folder,),
        gpu=True,
        children=True,
        # The tool and what it injects talk through a socket.
        network=True,
        environment=(*environment(build).items(), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
    )
    return wrap(command, policy, Tier.NONE if tier is Tier.NONE else Tier.LANDLOCK)


def lay_down(referee: Referee, attempt: Attempt, folder: Path) -> None:
    """The attempt, its order, and one set of weights and inputs."""
    import torch

    seeds = Seeds()
    seed = seeds.draw()
    _, inputs = referee.ask(Weights.OWN, seed, Inputs.OWN, seeds.draw())
    attempt.write(folder)
    model_spec = referee.processes.model_spec(seed)
    (folder / "order.json").write_text(json.dumps(model_spec.to_json()))
    tensors = {"inputs": inputs, "weights": referee.context.weights.tensors()}
    torch.save(
        {name: [t.cpu() for t in many] for name, many in tensors.items()}, folder / "data.pt"
    )


def run(command: list[str], folder: Path, deadline_s: float) -> tuple[int | None, str]:
    """Exit status, None past the deadline, and what was printed. The whole group is ended."""
    deadline = time.monotonic() + deadline_s
    with tempfile.TemporaryFile("w+", dir=folder.parent, errors="replace") as report:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=kept_environment(),
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended = None
        while ended is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            # Not reaped yet, so that the group's number is nobody else's when it is killed.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        report.seek(0)
        return (status if ended else None), report.read(MOST_READ)


def _shown(text: str) -> str:
    """The findings without the tool's frame, or the last lines of what went wrong."""
    found = [line.removeprefix("=========").strip() for line in text.splitlines() if "====" in line]
    lines = [line for line in found if line and line != "COMPUTE-SANITIZER"]
    return "\n".join(lines[:LINES] or text.splitlines()[-LINES:])


def _note(report: Report) -> str:
    first = next(iter(report.text.splitlines()), "")
    return f"compute-sanitizer {report.tool}: {report.outcome}{first and f': {first}'}"
