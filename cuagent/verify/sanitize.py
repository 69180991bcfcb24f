"""Check a candidate with NVIDIA's compute-sanitizer, if it is installed, before a claim.

It finds faults that no output shows: accesses outside a buffer that the candidate allocated, races
in shared memory, reads of uninitialised memory. It runs in the candidate's process, so it finds
mistakes and not cheats, and a clean report is no proof. It makes one call on the task's own inputs
per tool, 10 to 100 times slower than usual, with torch's caching allocator off, because the driver
regards accesses inside the allocator's pool as legal.

Invariant: a race or an uninitialised read rejects an attempt only in the attempt's own kernel,
because libraries are known to read uninitialised padding. An access out of bounds counts in any
kernel. A tool that could not run does not reject. Findings that do not reject become notes.
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
from cuagent.worker.fork_server import inherited_environment

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 99
"""Exit code that the tool returns if it found an error."""
DEADLINE_S = 120.0
"""Seconds that one tool may run."""
POLL_S = 0.05
"""Seconds between two checks for the end of the tool."""
MAX_LINES = 12
"""Number of lines of a report that are shown."""
MAX_READ = 1 << 20
"""Characters of a report that are read."""
PROGRAM = Path(__file__).parents[1] / "worker" / "single.py"
TRAMPOLINE = "/usr/bin/env"
"""Program that the tool starts. The tool calls access() first, which fails for an interpreter in a
private home folder, although the sandbox's capability allows executing it."""
INVALID = "Invalid __"
"""Text of an access that the driver would reject, which is a fault in any kernel."""
MISSING = (
    "compute-sanitizer is not installed: accesses outside memory that the candidate allocates are "
    "not checked"
)

_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*\)")
_NAME = re.compile(r"(\w+)\s*\(")
_TRITON = re.compile(r"@triton\.jit\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)")
_HEAD = 240
"""Characters after `__global__` that are searched for a kernel's name."""


class Outcome(StrEnum):
    """Result of a tool."""

    CLEAN = "clean"
    FAULTY = "faulty"
    """The report names a kernel that the attempt defines, or an access that is invalid in any
    kernel."""
    ELSEWHERE = "found an error outside the attempt's own kernels"
    UNKNOWN = "could not run"


@dataclass(frozen=True)
class Report:
    """Report of one tool."""

    tool: str
    outcome: Outcome
    text: str = ""
    """First findings in a few lines, or the reason why the tool could not run."""


def sanitizer() -> Path | None:
    """Return the compute-sanitizer of the CUDA toolkit or of a PyPI package; None if there is
    neither."""
    if found := shutil.which("compute-sanitizer"):
        return Path(found).resolve()
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        places += sorted(Path(root).glob("*/compute-sanitizer"))
    programs = [place / "compute-sanitizer" for place in places]
    return next((p.resolve() for p in programs if os.access(p, os.X_OK)), None)


def gated(referee: Referee, attempt: Attempt, build: Build, verdict: Verdict) -> Verdict:
    """Return the verdict after the tools ran: rejected for a fault, else with a note for each
    report.

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
    """Return one report per tool, up to the first that finds a fault.

    Empty for a CPU task, without the tool, or if the build failed. Raises OracleLost, TaskError.
    """
    program = sanitizer()
    if program is None or referee.task.device is not Device.CUDA or not build.ok:
        return ()
    folder = Path(tempfile.mkdtemp(prefix="sanitize-", dir=referee.folder))
    try:
        write_debug_folder(referee, attempt, folder)
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
    """Return the names of the kernels in the attempt's text: CUDA's, also in strings, and
    Triton's."""
    names: set[str] = set()
    for _, text in attempt.files:
        names.update(match[1] for match in _TRITON.finditer(text))
        for match in re.finditer("__global__", text):
            head = _BOUNDS.sub(" ", text[match.end() : match.end() + _HEAD])
            if found := _NAME.search(head):
                names.add(found[1])
    return frozenset(names)


def read(tool: str, status: int | None, text: str, own: frozenset[str]) -> Report:
    """Return the report for a tool's exit status (None after its time limit) and its text."""
    if status is None:
        return Report(tool, Outcome.UNKNOWN, "exceeded its time limit")
    if status == FOUND:
        named = not own.isdisjoint(re.findall(r"\w+", text))
        outcome = Outcome.FAULTY if named or INVALID in text else Outcome.ELSEWHERE
        return Report(tool, outcome, _shown(text))
    summary = _SUMMARY.search(text)
    # A tool that saw no kernel prints no summary, but may exit with 0.
    if status == 0 and summary is not None and summary[1] == "0":
        return Report(tool, Outcome.CLEAN)
    return Report(tool, Outcome.UNKNOWN, _shown(text) or f"ended with exit status {status}")


def sandboxed(program: Path, tool: str, folder: Path, build: Build, tier: Tier) -> list[str]:
    """Return the command that runs `single.py` on a folder under a tool, confined like a worker."""
    command = [
        str(program),
        *("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"),
        # torch makes driver calls that fail on some machines, and handles the failure.
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
        *(TRAMPOLINE, sys.executable, "-I", "-B", str(PROGRAM), str(folder)),
    ]
    policy = Policy(
        read=(program.parents[1], PROGRAM.parents[1], *(x.path for x in build.libraries)),
        write=(folder,),
        gpu=True,
        children=True,
        # The tool and the code that it injects communicate through a socket.
        network=True,
        environment=(*environment(build).items(), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
    )
    return wrap(command, policy, Tier.NONE if tier is Tier.NONE else Tier.LANDLOCK)


def write_debug_folder(referee: Referee, attempt: Attempt, folder: Path) -> None:
    """Write the attempt, its model spec, and one set of weights and inputs to `folder`."""
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
    """Run a command and return its exit status (None after the time limit) and its printed text.

    Ends the whole process group.
    """
    deadline = time.monotonic() + deadline_s
    with tempfile.TemporaryFile("w+", dir=folder.parent, errors="replace") as report:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=inherited_environment(),
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        exited = None
        while exited is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
            # Not reaped yet, so that the group's number stays reserved until it is killed.
            exited = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        report.seek(0)
        return (status if exited else None), report.read(MAX_READ)


def _shown(text: str) -> str:
    """Return the findings without the tool's frame, or the last lines of the text."""
    found = [line.removeprefix("=========").strip() for line in text.splitlines() if "====" in line]
    lines = [line for line in found if line and line != "COMPUTE-SANITIZER"]
    return "\n".join(lines[:MAX_LINES] or text.splitlines()[-MAX_LINES:])


def _note(report: Report) -> str:
    first = next(iter(report.text.splitlines()), "")
    return f"compute-sanitizer {report.tool}: {report.outcome}{first and f': {first}'}"
