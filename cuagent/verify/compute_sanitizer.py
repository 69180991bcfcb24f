"""Run NVIDIA's compute-sanitizer on one call of a candidate, and read its report.

The tool starts the program `worker/single.py` in the candidate's sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from cuagent.build import Build, environment
from cuagent.device_lock import UNSHARED, DeviceLock, GiveWay
from cuagent.sandbox import Policy, Tier, wrap
from cuagent.worker import suspend
from cuagent.worker.fork_server import inherited_environment
from cuagent.worker.giving_way import DRAIN_S
from cuagent.worker.single import TIMED
from cuagent.worker.supervised import Supervised

LAUNCHES = 64
"""Number of kernel launches that compute-sanitizer checks in one call of an attempt.

The limit keeps the check of a recurrence, which launches thousands of kernels, short.
"""
FOUND = 99
"""Exit code that compute-sanitizer returns if it found an error."""
POLL_S = 0.05
"""Seconds between two checks if compute-sanitizer has ended."""
MAX_LINES = 12
"""Number of lines of compute-sanitizer's report that the user sees."""
MAX_READ = 1 << 20
"""Largest number of characters of compute-sanitizer's report that are parsed."""
PROGRAM = Path(__file__).parents[1] / "worker" / "single.py"
TRAMPOLINE = "/usr/bin/env"
"""Program that compute-sanitizer starts, and that then starts Python.

compute-sanitizer first calls access() on its program. That would fail for a Python in a private
home folder, although the sandbox allows executing it.
"""
INVALID = "Invalid __"
"""Start of a report line on a memory access that the driver would reject.

Such an access rejects an attempt in any kernel, also in a library's.
"""
INTERNAL = "Internal Sanitizer Error"
"""Start of a report line on a failure of compute-sanitizer itself."""
EXCEPTION = "hardware exception"
"""Text in such a line that may also be the fault of a kernel, such as an access outside memory."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_RACE = re.compile(r"\b(?:[Rr]ace|hazard)\b")
"""Word in each finding of racecheck."""


class Outcome(StrEnum):
    """Result of one compute-sanitizer tool."""

    CLEAN = "clean"
    FAULTY = "faulty"
    """The report names a kernel of the attempt, or an invalid memory access in any kernel."""
    ELSEWHERE = "found an error outside the attempt's own kernels"
    UNKNOWN = "could not run"


@dataclass(frozen=True)
class Report:
    """Result of one compute-sanitizer tool (memcheck, racecheck, initcheck) on one call."""

    tool: str
    outcome: Outcome
    text: str = ""
    """First findings of the tool in a few lines; if it could not run, the reason."""
    reached: tuple[str, ...] = ()
    """C functions of the attempt's compiled libraries that were called."""
    launched: tuple[str, ...] = ()
    """Triton kernels that were launched."""
    call_s: float | None = None
    """Seconds of the call, as the attempt's process measured it; None if it was not measured."""

    @property
    def failed_itself(self) -> bool:
        """True if the tool ended with an internal error, which no kernel can cause."""
        failed = self.outcome is Outcome.UNKNOWN and INTERNAL in self.text
        return failed and EXCEPTION not in self.text


def sanitizer() -> Path | None:
    """Return the path of compute-sanitizer, from the CUDA toolkit or a PyPI package; None without
    it.
    """
    if found := shutil.which("compute-sanitizer"):
        return Path(found).resolve()
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        places += sorted(Path(root).glob("*/compute-sanitizer"))
    programs = [place / "compute-sanitizer" for place in places]
    return next((p.resolve() for p in programs if os.access(p, os.X_OK)), None)


@cache
def name_filter(program: Path) -> str:
    """Return the command-line option that limits the check to kernels by name (renamed in 2023)."""
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return "--kernel-name" if "--kernel-name " in shown.stdout else "--kernel-regex"


def sandboxed(
    program: Path,
    tool: str,
    folder: Path,
    build: Build,
    tier: Tier,
    kernels: Collection[str] = (),
    *,
    timed: bool = False,
) -> list[str]:
    """Return the command that runs `worker/single.py` on `folder` under compute-sanitizer,
    sandboxed.

    `tool` is memcheck, racecheck or initcheck. Only kernels whose name contains one of `kernels`
    are instrumented; empty means all. If `timed`, the program also measures the call's seconds.
    """
    filters = (f"kns={name}" for name in sorted(kernels))
    command = [
        str(program),
        *("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"),
        # torch makes driver calls that fail on some machines, and handles the failure.
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
        *(word for kept in filters for word in (name_filter(program), kept)),
        *(("--launch-count", str(LAUNCHES)) if kernels else ()),
        *(TRAMPOLINE, sys.executable, "-I", "-B", str(PROGRAM), str(folder)),
        *((TIMED,) if timed else ()),
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


def run(
    command: list[str],
    folder: Path,
    limit_s: float,
    device_lock: DeviceLock = UNSHARED,
    is_aborted: Callable[[float], bool] = lambda _: False,
) -> tuple[int | None, str]:
    """Run a command in `folder`; return its exit status and its printed text.

    The status is None if the command exceeded `limit_s` seconds, could not be suspended, or
    `is_aborted` before it ended; that is called with the seconds of suspension until then.

    The command uses the device in shared mode. It is suspended while another process uses the
    device exclusively; suspended time does not count against `limit_s`. At the end all its
    processes are killed, also those that left its process group, because they could slow a later
    timing.
    """
    with (
        device_lock.shared() as give_way,
        tempfile.TemporaryFile("w+", dir=folder.parent, errors="replace") as report,
    ):
        deadline, suspended_s = time.monotonic() + limit_s, 0.0
        with Supervised(command, folder, inherited_environment(), report) as process:
            exited = False
            with suppress(suspend.SuspendError):
                while (
                    not exited
                    and time.monotonic() < deadline + suspended_s
                    and not is_aborted(suspended_s)
                ):
                    exited = process.wait(POLL_S)
                    if not exited and device_lock.is_awaited:
                        suspended_s += _give_way(process, give_way)
            status = process.status() if exited else None
        report.seek(0)
        return status, report.read(MAX_READ)


def _give_way(process: Supervised, give_way: GiveWay) -> float:
    """Suspend `process` while another process uses the device exclusively; return the seconds.

    Raises SuspendError if the process cannot be suspended.
    """
    begun = time.monotonic()
    outside = process.stop()
    try:
        time.sleep(DRAIN_S)
        give_way()
    finally:
        process.resume(outside)
    return time.monotonic() - begun


def read(tool: str, status: int | None, text: str, own: Collection[str]) -> Report:
    """Return the `Report` for compute-sanitizer's exit status and printed text.

    `status` is None after a timeout. `own` are the names of the attempt's kernels.
    """
    if status is None:
        return Report(tool, Outcome.UNKNOWN, "exceeded its time limit")
    if status == FOUND and tool == "racecheck" and _only_failed(text):
        return Report(tool, Outcome.UNKNOWN, _shown(text))
    if status == FOUND:
        named = not set(own).isdisjoint(re.findall(r"\w+", text))
        outcome = Outcome.FAULTY if named or INVALID in text else Outcome.ELSEWHERE
        return Report(tool, outcome, _shown(text))
    summary = _SUMMARY.search(text)
    # A tool that saw no kernel prints no summary, but may exit with 0.
    if status == 0 and summary is not None and summary[1] == "0":
        return Report(tool, Outcome.CLEAN)
    return Report(tool, Outcome.UNKNOWN, _shown(text) or f"ended with exit status {status}")


def _only_failed(text: str) -> bool:
    """Return True if racecheck printed an internal failure, and no finding."""
    printed = "\n".join(_lines_of_tool(text))
    return INTERNAL in printed and INVALID not in printed and not _RACE.search(printed)


def _shown(text: str) -> str:
    """Return the findings in the text without compute-sanitizer's line prefixes; else its last
    lines.
    """
    found = [line.removeprefix("=========").strip() for line in _lines_of_tool(text)]
    lines = [line for line in found if line and line != "COMPUTE-SANITIZER"]
    return "\n".join(lines[:MAX_LINES] or text.splitlines()[-MAX_LINES:])


def _lines_of_tool(text: str) -> list[str]:
    """Return the lines that compute-sanitizer printed; the others are the program's, such as a
    stack trace after an error of the tool."""
    return [line for line in text.splitlines() if "====" in line]
