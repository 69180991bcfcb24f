"""A gate before export: the candidate under NVIDIA's compute-sanitizer, where it is installed.

It finds what no output shows: accesses past a buffer that the candidate allocated itself, races in
shared memory, reads of memory never written. It runs beside the candidate, so it finds mistakes and
not lies, and a clean report is no proof. One call on the task's own inputs per tool, 10 to 100
times slower than usual, with torch's caching allocator off, since accesses inside its pool are
legal to the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.build import Build, environment
from cuagent.sandbox import Policy, Tier, wrap
from cuagent.task import Device
from cuagent.verify.inputs import Inputs, Weights
from cuagent.verify.referee import Referee
from cuagent.verify.seeds import Seeds
from cuagent.worker.nursery import kept_environment

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 99
"""Exit code that the tool is told to leave with when it found something."""
DEADLINE_S = 120.0
LINES = 12
"""Of a report that are shown."""
PROGRAM = Path(__file__).parents[1] / "worker" / "single.py"


@dataclass(frozen=True)
class Report:
    """What one tool said."""

    tool: str
    clean: bool
    text: str = ""
    """Its first findings, a few lines; or why it could not say."""
    ran: bool = True
    """False where the tool itself did not start or did not finish: then nothing is known."""


def sanitizer() -> Path | None:
    """compute-sanitizer, None where it is not installed."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    found = shutil.which("compute-sanitizer") or (str(beside) if beside.is_file() else None)
    return Path(found).resolve() if found else None


def sanitize(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    tools: Sequence[str] = TOOLS,
    deadline_s: float = DEADLINE_S,
) -> tuple[Report, ...]:
    """One report for each tool, up to the first that found something.

    Empty where there is no CUDA task, no tool, or nothing built. Raises OracleLost, TaskError.
    """
    program = sanitizer()
    if program is None or referee.task.device is not Device.CUDA or not build.ok:
        return ()
    folder = Path(tempfile.mkdtemp(prefix="sanitize-", dir=referee.folder))
    try:
        _lay_down(referee, attempt, folder)
        reports: list[Report] = []
        for tool in tools:
            reports.append(_run(program, tool, folder, build, referee.tier, deadline_s))
            if not reports[-1].clean and reports[-1].ran:
                break
        return tuple(reports)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lay_down(referee: Referee, attempt: Attempt, folder: Path) -> None:
    """The attempt, its order, and one set of weights and inputs."""
    import torch

    seeds = Seeds()
    seed = seeds.draw()
    _, inputs = referee.ask(Weights.OWN, seed, Inputs.OWN, seeds.draw())
    attempt.write(folder)
    order = referee.order(seed)
    (folder / "order.json").write_text(json.dumps(order.to_json()))
    tensors = {"inputs": inputs, "weights": referee.stage.weights.tensors()}
    torch.save(
        {name: [t.cpu() for t in many] for name, many in tensors.items()}, folder / "data.pt"
    )


def _run(
    program: Path, tool: str, folder: Path, build: Build, tier: Tier, deadline_s: float
) -> Report:
    command = [
        str(program),
        *("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"),
        *(sys.executable, "-I", "-B", str(PROGRAM), str(folder)),
    ]
    policy = Policy(
        read=(program.parents[1], PROGRAM.parents[1], *(x.path for x in build.libraries)),
        write=(folder,),
        gpu=True,
        children=True,
        # The tool and what it injects talk through a local socket.
        network=True,
        environment=(
            *environment(build).items(),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
            ("TMPDIR", str(folder)),
        ),
    )
    try:
        done = subprocess.run(
            wrap(command, policy, Tier.NONE if tier is Tier.NONE else Tier.LANDLOCK),
            cwd=folder,
            env=kept_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Report(tool, False, f"not done after {deadline_s:.0f} s", ran=False)
    if done.returncode == 0:
        return Report(tool, True)
    return Report(tool, False, _shown(done.stdout), ran=done.returncode == FOUND)


def _shown(text: str) -> str:
    """The findings without the tool's frame, or the last lines of what went wrong."""
    found = [line.removeprefix("=========").strip() for line in text.splitlines() if "====" in line]
    lines = [line for line in found if line] or text.splitlines()[-LINES:]
    return "\n".join(lines[:LINES])
