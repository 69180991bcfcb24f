"""Run the tools of compute-sanitizer on one attempt at the same time, each in its own folder.

racecheck instruments every access to shared memory and takes much longer than the others. It looks
at one block at a time, and blocks of other rows run the same code. So it also runs on few rows of
inputs that take more than `FEW_ABOVE`. If racecheck does not end on the whole inputs, its report on
few rows counts, if it found nothing there and ran all kernels and library functions that memcheck
saw on the whole inputs. A finding on few rows alone does not reject: a kernel may be written for
one number of rows. After the other tools have ended, `race_limit` decides by the run on few rows
if the one on the whole inputs is stopped.

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
from cuagent.verify.race_limit import of_few, why_hopeless
from cuagent.worker.single import INPUTS, REACHED, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.compiled_code import CompiledCode
    from cuagent.worker.memory.arena import Leaf

RACECHECK, INITCHECK = "racecheck", "initcheck"
FEW_ABOVE = 4 << 20
"""Size in bytes of the inputs with common rows above which racecheck also runs on few rows."""
FEW_BYTES = 2 << 20
"""Size in bytes that the few rows of these inputs take at most, if that is a row or more."""
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
    raced: Collection[str] | None = None
    """Those of `kernels` that racecheck instruments; None means all."""

    def kernels_of(self, tool: str) -> Collection[str]:
        """Return the names of the kernels that a tool instruments."""
        return self.kernels if tool != RACECHECK or self.raced is None else self.raced


@dataclass(frozen=True)
class Reports:
    """Reports of the tools, one for each."""

    each: tuple[Report, ...]
    few: bool = False
    """True if racecheck's report is the one on few rows."""


def few_rows(inputs: Sequence[Tensor], rows: int | None) -> int | None:
    """Return the number of rows of the second racecheck; None if there is none.

    It divides `rows`, so that the last block of a kernel is incomplete if it is so on all rows.
    `rows` is the number of rows of the inputs that are cut (`first_rows`); None if there are none.
    """
    size = sum(tensor.nbytes for tensor in inputs if _has_rows(tensor, rows))
    if rows is None or size <= FEW_ABOVE:
        return None
    largest = max(1, int(rows * FEW_BYTES / size))
    found = next(n for n in range(largest, 0, -1) if rows % n == 0)
    return found if found < rows else None


def first_rows(inputs: Sequence[Tensor], rows: int | None, few: int | None) -> list[Tensor]:
    """Return the inputs; those with `rows` rows cut to the first `few`.

    Others are kept whole: the second factor of a product has other rows. If a kernel refuses
    such inputs, the report on few rows does not count.
    """
    return [tensor[:few] if _has_rows(tensor, rows) else tensor for tensor in inputs]


def _has_rows(tensor: Tensor, rows: int | None) -> bool:
    return rows is not None and tensor.shape[:1] == (rows,)


def rows_of_outputs(outputs: Sequence[Leaf]) -> int | None:
    """Return the length of the first dimension of all outputs; None if they differ."""
    counts = {leaf.shape[0] if leaf.shape else 0 for leaf in outputs}
    return counts.pop() if len(counts) == 1 else None


def common_rows(inputs: Sequence[Tensor], outputs: Sequence[Leaf]) -> int | None:
    """Return the length of the first dimension of all inputs and outputs; None if they differ."""
    counts = {shape[0] if shape else 0 for shape in [t.shape for t in inputs]}
    counts |= {leaf.shape[0] if leaf.shape else 0 for leaf in outputs}
    return counts.pop() if len(counts) == 1 else None


class ToolRuns:
    """The processes of all tools on one attempt; `provide` gives them their tensors."""

    def __init__(self, run: Run, shared: Path, few: Path | None, scale: float = 1.0) -> None:
        """Prepare runs on the files in `shared`, and of racecheck on those in `few`, whose rows
        `shared` has `scale` times."""
        self._run = run
        self._scale = scale
        self._shared, self._few = shared, few
        self._folders: dict[Path, list[Path]] = {shared: []}
        if few is not None:
            self._folders[few] = []
        self._aborted = threading.Event()
        self._runs: dict[str, Future[Report]] = {}
        self._few_run: Future[Report] | None = None
        self._provided = 0.0
        """Time of the monotonic clock at which all tools had their inputs."""
        self._hopeless = ""
        """Why racecheck on all rows was stopped; "" if it was not."""

    def reports(self, tools: Sequence[str], at_once: int, write: Callable[[], None]) -> Reports:
        """Start the tools, at most `at_once` at a time, call `write`, which writes the tensors to
        the shared folders, and return the reports."""
        jobs = {tool: self._own_folder(self._shared, tool) for tool in tools}
        few_folder = None
        if RACECHECK in tools and self._few is not None:
            few_folder = self._own_folder(self._few, RACECHECK)
        with ThreadPoolExecutor(at_once) as executor:
            for tool, own in jobs.items():
                stop = self._stop if tool != RACECHECK else self._stop_of_whole(few_folder)
                self._runs[tool] = executor.submit(self._report, tool, own, stop)
            if few_folder is not None:
                self._few_run = executor.submit(self._few_report, few_folder)
            try:
                write()
                self._provide()
                found = {tool: future.result() for tool, future in self._runs.items()}
            except BaseException:
                self._aborted.set()
                raise
        on_few = False
        if self._few_run is not None and found[RACECHECK].outcome is Outcome.UNKNOWN:
            others = [report for tool, report in found.items() if tool != RACECHECK]
            few, whole = self._few_run.result(), found[RACECHECK]
            if self._hopeless:
                whole = replace(whole, text=f"stopped, because {self._hopeless}")
            found[RACECHECK] = of_few(few, whole, others)
            on_few = found[RACECHECK] is few
        return Reports(tuple(found[tool] for tool in tools), on_few)

    def _provide(self) -> None:
        """Link the tensors into the folders of all tools; the inputs last, for which the processes
        wait."""
        for shared, folders in self._folders.items():
            for own in folders:
                for name in (WEIGHTS, INPUTS):
                    os.link(shared / name, own / name)
        self._provided = time.monotonic()

    def _stop(self, _: float) -> bool:
        return self._aborted.is_set()

    def _stop_of_whole(self, few_folder: Path | None) -> Callable[[float], bool]:
        """Return the function that stops racecheck on all rows if it cannot end in its time."""
        since: float | None = None
        clean_since: float | None = None

        def stop(suspended_s: float) -> bool:
            nonlocal since, clean_since
            few = self._few_run
            # The tools may also run one after another; then few rows wait for this run.
            if few is None or not (few.running() or few.done()):
                return self._aborted.is_set()
            ran = [run for tool, run in self._runs.items() if tool != RACECHECK]
            if all(run.done() for run in ran):
                now = time.monotonic() - suspended_s
                since = now if since is None else since
                # After its first call the run on few rows only measures the time of another one.
                called = few_folder is not None and (few_folder / REACHED).exists()
                if few.done() and clean_since is None:
                    clean_since = now
                self._hopeless = why_hopeless(
                    few.result() if few.done() else None,
                    [run.result() for run in ran],
                    scale=self._scale,
                    window_s=self._run.ends - self._provided,
                    waited_s=0.0 if called else now - since,
                    clean_s=0.0 if clean_since is None else now - clean_since,
                )
            return self._aborted.is_set() or bool(self._hopeless)

        return stop

    def _few_report(self, own: Path) -> Report:
        """Run racecheck on few rows, until it ends or the run on all rows was stopped or has
        decided."""
        suspended = 0.0
        whole = self._runs[RACECHECK]

        def stop(suspended_s: float) -> bool:
            nonlocal suspended
            suspended = suspended_s
            decided = whole.done() and whole.result().outcome is not Outcome.UNKNOWN
            return self._aborted.is_set() or bool(self._hopeless) or decided

        report = self._report(RACECHECK, own, stop, timed=True)
        # A process measures its seconds with those of its suspension.
        return replace(report, call_s=None) if suspended else report

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

    def _report(
        self, tool: str, own: Path, stop: Callable[[float], bool], *, timed: bool = False
    ) -> Report:
        """Run one tool in the folder `own` until its time ends or `stop`; return its report."""
        given = self._run

        def executed(kernels: Collection[str]) -> Report:
            command = sandboxed(
                given.program, tool, own, given.build, given.tier, kernels, timed=timed
            )
            seconds = max(given.ends - time.monotonic(), 0.0)
            status, text = run(command, own, seconds, given.lock, stop)
            return read(tool, status, text, given.kernels_of(tool))

        report = executed(given.kernels_of(tool))
        reached, launched, call_s = _reached(own)
        if tool == INITCHECK and report.outcome is Outcome.FAULTY:
            confirmed = executed(())
            unknown = confirmed.outcome is Outcome.UNKNOWN
            report = replace(confirmed, text=UNCONFIRMED) if unknown else confirmed
        return replace(report, reached=reached, launched=launched, call_s=call_s)


def _reached(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...], float | None]:
    """Return the names of the library functions that the call ran, of the Triton kernels that it
    launched, and its seconds if they were measured, from a file of its process.

    The attempt's code shares that process, so the lists prove nothing, and the file may be a link,
    a pipe or deeply nested JSON.
    """
    root = open_folder(folder)
    try:
        lists = json.loads(read_beneath(root, REACHED, MAX_READ))
    except (OSError, ValueError, RecursionError):
        return (), (), None
    finally:
        os.close(root)
    if not isinstance(lists, list) or not all(isinstance(names, list) for names in lists):
        return (), (), None
    functions, kernels, seconds = [*lists, [], [], []][:3]
    measured = next((s for s in seconds if isinstance(s, float)), None)
    return tuple(map(str, functions)), tuple(map(str, kernels)), measured
