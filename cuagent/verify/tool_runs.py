"""Run the tools of compute-sanitizer on one attempt at the same time, each in its own folder.

racecheck instruments every access to shared memory and takes much longer than the others. It looks
at one block at a time, and blocks of other rows run the same code. So it also runs on few rows of
inputs that take more than `FEW_ABOVE`. If that finds nothing and runs all kernels and library
functions that memcheck sees on the whole inputs, racecheck on the whole inputs is not awaited once
the other tools have ended. A finding on few rows alone does not reject: a kernel may be written for
one number of rows.

The processes start before the inputs are written, because importing torch under a tool takes
seconds; they wait for the file of the inputs (`worker/single.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import UNSHARED, DeviceLock
from cuagent.sandbox import Tier
from cuagent.sandbox.beneath import open_folder, read_beneath
from cuagent.verify.compute_sanitizer import MAX_READ, Outcome, Report, read, run, sandboxed
from cuagent.worker.single import INPUTS, REACHED, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.compiled_code import CompiledCode
    from cuagent.worker.memory.arena import Leaf

RACECHECK, INITCHECK = "racecheck", "initcheck"
FEW_ABOVE = 32 << 20
"""Size in bytes of all inputs above which racecheck also runs on few rows."""
FEW_BYTES = 8 << 20
"""Size in bytes of all inputs that racecheck's few rows take at most, if that is a row or more."""
UNCONFIRMED = (
    "a kernel reads memory that none of the attempt's kernels wrote; the check if a library's "
    "kernel wrote it exceeded its time limit"
)


@dataclass(frozen=True)
class Run:
    """Data that all tools need: the program, the attempt and the instrumented kernels."""

    program: Path
    attempt: Attempt
    build: Build
    tier: Tier
    kernels: Collection[str]
    compiled: CompiledCode
    ends: float
    """Time of the monotonic clock at which the tools must end."""
    lock: DeviceLock = UNSHARED


@dataclass(frozen=True)
class Reports:
    """Reports of the tools, one for each."""

    each: tuple[Report, ...]
    few: bool = False
    """True if racecheck's report is the one on few rows."""


def few_rows(inputs: Sequence[Tensor], rows: int | None) -> int | None:
    """Return the number of rows of the second racecheck; None if there is none.

    It divides `rows`, so that the last block of a kernel is incomplete if it is so on all rows.
    `rows` is None if the inputs and outputs have no common number of rows.
    """
    size = sum(tensor.nbytes for tensor in inputs)
    if rows is None or size <= FEW_ABOVE:
        return None
    largest = max(1, int(rows * FEW_BYTES / size))
    found = next(n for n in range(largest, 0, -1) if rows % n == 0)
    return found if found < rows else None


def common_rows(inputs: Sequence[Tensor], outputs: Sequence[Leaf]) -> int | None:
    """Return the length of the first dimension of all inputs and outputs; None if they differ."""
    counts = {shape[0] if shape else 0 for shape in [t.shape for t in inputs]}
    counts |= {leaf.shape[0] if leaf.shape else 0 for leaf in outputs}
    return counts.pop() if len(counts) == 1 else None


class ToolRuns:
    """The processes of all tools on one attempt; `provide` gives them their tensors."""

    def __init__(self, run: Run, shared: Path, few: Path | None) -> None:
        """Prepare runs on the files in `shared`, and of racecheck on those in `few`."""
        self._run = run
        self._shared, self._few = shared, few
        self._folders: dict[Path, list[Path]] = {shared: []}
        if few is not None:
            self._folders[few] = []
        self._aborted = threading.Event()

    def reports(self, tools: Sequence[str], at_once: int, write: Callable[[], None]) -> Reports:
        """Start the tools, at most `at_once` at a time, call `write`, which writes the tensors to
        the shared folders, and return the reports."""
        jobs = {tool: self._own_folder(self._shared, tool) for tool in tools}
        few_folder = None
        if RACECHECK in tools and self._few is not None:
            few_folder = self._own_folder(self._few, RACECHECK)
        with ThreadPoolExecutor(at_once) as executor:
            runs = {tool: executor.submit(self._report, tool, own) for tool, own in jobs.items()}
            few: Future[Report] | None = None
            if few_folder is not None:
                few = executor.submit(self._report, RACECHECK, few_folder)
            try:
                write()
                self._provide()
            except BaseException:
                self._aborted.set()
                raise
        found = {tool: future.result() for tool, future in runs.items()}
        on_few = False
        if few is not None and found[RACECHECK].outcome is Outcome.UNKNOWN:
            others = [report for tool, report in found.items() if tool != RACECHECK]
            found[RACECHECK] = _of_few(few.result(), found[RACECHECK], others)
            on_few = found[RACECHECK] is few.result()
        return Reports(tuple(found[tool] for tool in tools), on_few)

    def _provide(self) -> None:
        """Link the tensors into the folders of all tools; the inputs last, for which the processes
        wait."""
        for shared, folders in self._folders.items():
            for own in folders:
                for name in (WEIGHTS, INPUTS):
                    os.link(shared / name, own / name)

    def _own_folder(self, shared: Path, tool: str) -> Path:
        """Create a folder for one tool, with the shared files and the attempt's compiled files.

        Its name is new, because the folder of an earlier call may contain files that cannot be
        removed.
        """
        own = Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=shared.parent))
        shutil.copytree(shared, own, copy_function=os.link, dirs_exist_ok=True)
        own.chmod(0o755)
        self._run.compiled.copy_to(self._run.attempt, own)
        self._folders[shared].append(own)
        return own

    def _report(self, tool: str, own: Path) -> Report:
        """Run one tool in the folder `own` until its time ends; return its report."""
        given = self._run

        def executed(kernels: Collection[str]) -> Report:
            command = sandboxed(given.program, tool, own, given.build, given.tier, kernels)
            seconds = max(given.ends - time.monotonic(), 0.0)
            status, text = run(command, own, seconds, given.lock, self._aborted.is_set)
            return read(tool, status, text, given.kernels)

        report = executed(given.kernels)
        reached, launched = _reached(own)
        if tool == INITCHECK and report.outcome is Outcome.FAULTY:
            confirmed = executed(())
            unknown = confirmed.outcome is Outcome.UNKNOWN
            report = replace(confirmed, text=UNCONFIRMED) if unknown else confirmed
        return replace(report, reached=reached, launched=launched)


def _of_few(few: Report, whole: Report, others: Sequence[Report]) -> Report:
    """Return racecheck's report if it did not end on the whole inputs (`whole`).

    The report on few rows counts if the attempt ran all functions and kernels there that the
    `others`, the other tools, saw.
    """
    if few.outcome in (Outcome.FAULTY, Outcome.ELSEWHERE):
        text = f"{whole.text}; on few rows, which alone do not reject: {few.text}"
        return replace(few, outcome=Outcome.UNKNOWN, text=text)
    ran = {*few.reached, *few.launched}
    covers = bool(ran) and all({*other.reached, *other.launched} <= ran for other in others)
    return few if few.outcome is Outcome.CLEAN and covers else whole


def _reached(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the library functions that the call ran and of the Triton kernels that it
    launched, from a file of its process.

    The attempt's code shares that process, so the lists prove nothing, and the file may be a link,
    a pipe or deeply nested JSON.
    """
    root = open_folder(folder)
    try:
        lists = json.loads(read_beneath(root, REACHED, MAX_READ))
    except (OSError, ValueError, RecursionError):
        return (), ()
    finally:
        os.close(root)
    if not isinstance(lists, list) or not all(isinstance(names, list) for names in lists):
        return (), ()
    functions, kernels = [*lists, [], []][:2]
    return tuple(map(str, functions)), tuple(map(str, kernels))
