"""Check an accepted candidate with NVIDIA's compute-sanitizer, if it is installed.

It finds faults that no output shows: accesses outside a buffer that the candidate allocated, races
in shared memory, reads of uninitialised memory. It runs in the candidate's process, so it finds
mistakes and not cheats, and a clean report is no proof. Each of its tools checks one call on the
task's own inputs. torch's caching allocator is off, because the driver regards accesses inside the
allocator's pool as legal.

Only kernels that the attempt defines are instrumented; they are found by name. With the kernels of
cuDNN and cuBLAS the tools took 60 to 172 s. racecheck leaves out Triton's kernels, which it could
not finish in the time limit. Inputs of more than `LARGE_BYTES` are cut along their first dimension,
if the attempt's kernels still run, and racecheck may see few rows (`tool_runs`). The verdict's
notes say what was covered.

initcheck runs if an attempt allocates memory without torch, because the verdict's calls fill
torch's own uninitialised memory with two patterns. It sees only writes of instrumented kernels. So
a kernel that reads the result of a library's kernel seems to read uninitialised memory. Before
initcheck rejects an attempt, it runs again with all kernels instrumented.

Invariant: a race or an uninitialised read rejects an attempt only in the attempt's own kernel,
because libraries are known to read uninitialised padding. An access out of bounds counts in any
instrumented kernel. A tool that could not run does not reject. Findings that do not reject become
notes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import UNSHARED, DeviceLock
from cuagent.sandbox import SandboxError
from cuagent.task import Device
from cuagent.task.memory import free
from cuagent.verdict import Reason, Verdict
from cuagent.verify.compute_sanitizer import LAUNCHES, Outcome, Report, sanitizer
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.own_kernels import (
    allocates,
    built_kernels,
    kernels_with_barriers,
    own_kernels,
)
from cuagent.verify.referee import Referee
from cuagent.verify.tool_runs import (
    INITCHECK,
    RACECHECK,
    Reports,
    Run,
    ToolRuns,
    common_rows,
    few_rows,
    first_rows,
    rows_of_outputs,
)
from cuagent.worker.single import INPUTS, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.worker.memory.arena import Leaf

TOOLS = ("memcheck", RACECHECK, INITCHECK)
LARGE_BYTES = 1 << 30
"""Size in bytes of all inputs above which the tools first run on fewer rows.

Each tool's process reads the inputs from a file, which takes long for large inputs.
"""
WHOLE_BYTES = 8 << 30
"""Largest size in bytes of all inputs for which the tools also run on all rows.

They do so only if the attempt's kernels did not run on fewer rows.
"""
CONTEXT_BYTES = 1 << 30
"""Assumed GPU memory in bytes of a process under a tool, without its tensors."""
TAIL = 64
"""Rows are removed in multiples of this number.

The remainder of rows in a kernel's last block then stays the same.
"""
BUDGET_S = 15.0
"""Time limit in seconds for all tools together."""
SHARED, FEW = "shared", "few"
"""Names of the folders with the files that all tools read, and that racecheck reads for few
rows."""
MISSING = (
    "compute-sanitizer is not installed: accesses outside memory that the candidate allocates are "
    "not checked"
)


@dataclass(frozen=True)
class Check:
    """Reports of all tools that ran on one attempt, with their coverage."""

    reports: tuple[Report, ...]
    kernels: tuple[str, ...] = ()
    """Names of the kernels that were instrumented."""
    rows: tuple[int, int] | None = None
    """(rows that the tools saw, all rows) of the inputs; None if the inputs were not cut."""
    seconds: float = 0.0
    raced: tuple[int, int] | None = None
    """(rows that racecheck saw, rows that the other tools saw); None if they are equal."""
    triton: int = 0
    """Number of the kernels that racecheck left out, because Triton's compiler places their
    barriers."""

    @property
    def coverage(self) -> str:
        """Note for the verdict: the kernels and inputs that compute-sanitizer covered."""
        if not self.kernels:
            return "compute-sanitizer did not run: the attempt defines no kernel of its own"
        inputs = "the task's own inputs"
        if self.rows is not None:
            inputs = f"the first {self.rows[0]} of {self.rows[1]} rows of {inputs}"
        if self.raced is not None:
            inputs += f", racecheck on {self.raced[0]} of {self.raced[1]} rows"
        if self.triton:
            inputs += (
                f", racecheck without {self.triton} of Triton, whose barriers it places itself"
            )
        ran_any = {name for r in self.reports for name in (*r.reached, *r.launched)}
        reached = sorted(ran_any)
        ran = f"; the call ran {', '.join(reached)}" if reached else ""
        return (
            f"compute-sanitizer covered {', '.join(self.kernels)} (at most {LAUNCHES} launches on "
            f"{inputs}; no kernels of libraries) in {self.seconds:.0f} s{ran}"
        )


def gated(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    verdict: Verdict,
    device_lock: DeviceLock = UNSHARED,
) -> Verdict:
    """Run compute-sanitizer on an accepted attempt on a GPU; return the verdict with its result.

    A fault changes the verdict to a rejection; other reports become notes. Other verdicts are
    returned unchanged. The tools share the device and stop while another judge times, so the caller
    must not hold `device_lock`. Raises OracleLost, TaskError.
    """
    if referee.task.device is not Device.CUDA or not verdict.accepted:
        return verdict
    if sanitizer() is None:
        return replace(verdict, notes=(*verdict.notes, MISSING))
    check = sanitize(referee, attempt, build, device_lock=device_lock)
    for report in check.reports:
        if report.outcome is Outcome.FAULTY:
            return replace(
                verdict,
                accepted=False,
                reason=Reason.MEMORY_FAULT,
                detail=f"{report.tool}: {report.text.splitlines()[0]}",
                output=report.text,
            )
    return replace(verdict, notes=(*verdict.notes, *map(_note, check.reports), check.coverage))


def sanitize(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    tools: Sequence[str] = TOOLS,
    budget_s: float = BUDGET_S,
    device_lock: DeviceLock = UNSHARED,
) -> Check:
    """Run the tools on one call of the attempt; return one report per tool.

    The reports are empty for a CPU task, for an attempt that defines no kernel, without an
    installed compute-sanitizer, or if the build failed. Raises OracleLost, TaskError.
    """
    program, kernels = sanitizer(), own_kernels(attempt) or built_kernels(build)
    if program is None or referee.task.device is not Device.CUDA or not build.ok or not kernels:
        return Check(())
    if not allocates(attempt):
        tools = [tool for tool in tools if tool != INITCHECK]
    if not kernels_with_barriers(attempt, kernels):
        tools = [tool for tool in tools if tool != RACECHECK]
    return check(program, kernels, referee, attempt, build, tools, budget_s, device_lock)


def check(
    program: Path,
    kernels: Collection[str],
    referee: Referee,
    attempt: Attempt,
    build: Build,
    tools: Sequence[str],
    budget_s: float,
    device_lock: DeviceLock = UNSHARED,
) -> Check:
    """Run `tools` of compute-sanitizer (`program`) on the attempt; `kernels` are instrumented.

    Large inputs are first cut to fewer rows (`_cuts`), then used whole if the kernels did not run.
    Raises OracleLost, TaskError.
    """
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="sanitize-", dir=referee.folder))
    reports: tuple[Report, ...] = ()
    rows = raced = None
    compiled = referee.processes.compiled
    ends = begun + budget_s
    racing = kernels_with_barriers(attempt, kernels)
    run = Run(program, attempt, build, referee.tier, kernels, compiled, ends, device_lock, racing)
    try:
        with device_lock.shared() as give_way, referee.giving_way(give_way):
            inputs = _inputs(referee)
        outputs = referee.facts.layouts.output.leaves
        for rows in _cuts(inputs, outputs):
            used = inputs if rows is None else [t[: rows[0]] for t in inputs]
            every = rows_of_outputs(outputs) if rows is None else rows[0]
            few = few_rows(used, every) if RACECHECK in tools else None
            found = _run_tools(run, referee, folder, used, tools, every, few)
            reports, raced = found.each, (few, every) if few and every and found.few else None
            if rows is None or not _missed(reports, build):
                break
    except SandboxError as error:
        reports = (Report(tools[0], Outcome.UNKNOWN, str(error)),)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds, left_out = time.monotonic() - begun, len(kernels) - len(racing)
    return Check(reports, tuple(sorted(kernels)), rows, seconds, raced, left_out)


def _run_tools(
    run: Run,
    referee: Referee,
    folder: Path,
    inputs: Sequence[Tensor],
    tools: Sequence[str],
    rows: int | None,
    few: int | None,
) -> Reports:
    """Run the tools on `inputs`, and racecheck also on the first `few` of `rows` rows; return the
    reports."""
    shared = _shared_folder(referee, run.attempt, folder, SHARED)
    of_few = None if few is None else _shared_folder(referee, run.attempt, folder, FEW)

    def write() -> None:
        weights = referee.context.weights.tensors()
        _write_tensors(shared / WEIGHTS, weights, run.lock)
        if of_few is not None:  # first, because racecheck takes longest
            os.link(shared / WEIGHTS, of_few / WEIGHTS)
            _write_tensors(of_few / INPUTS, first_rows(inputs, rows, few), run.lock)
        _write_tensors(shared / INPUTS, inputs, run.lock)

    processes = len(tools) + (few is not None)
    at_once = processes if _all_fit(referee, processes, inputs) else 1
    scale = rows / few if rows and few else 1.0
    return ToolRuns(run, shared, of_few, scale).reports(tools, at_once, write)


def _all_fit(referee: Referee, tools: int, inputs: Sequence[Tensor]) -> bool:
    """Return True if the GPU's free memory is enough for `tools` processes at the same time."""
    share = sum(t.nbytes for t in inputs) / max(1, referee.facts.layouts.inputs.size)
    each = CONTEXT_BYTES + referee.facts.layouts.state.size + share * referee.bytes_per_call
    return tools * each <= free(referee.task.device.value)


def _missed(reports: Sequence[Report], build: Build) -> bool:
    """Return True if a call on fewer rows may have skipped the attempt's kernels.

    That is so if no tool completed, or if the call ran none of the attempt's library functions.
    """
    ended = [r for r in reports if r.outcome is not Outcome.UNKNOWN]
    return not ended or (bool(build.libraries) and not any(r.reached for r in ended))


def _inputs(referee: Referee) -> list[Tensor]:
    """Return one draw of the task's own inputs."""
    seeds = Seeds()
    return referee.drawn(Weights.OWN, seeds.draw(), Inputs.OWN, seeds.draw())


def _cuts(inputs: Sequence[Tensor], outputs: Sequence[Leaf]) -> Iterator[tuple[int, int] | None]:
    """Yield each size of inputs to try: (rows to use, all rows) for cut inputs, None for whole
    inputs.

    Inputs are cut if they are large, and all inputs and outputs have the same number of rows.
    """
    size = sum(t.numel() * t.element_size() for t in inputs)
    rows = common_rows(inputs, outputs)
    if size > LARGE_BYTES and rows is not None:
        fewer = int(rows * LARGE_BYTES / size / 4)
        fewer += (rows - fewer) % TAIL
        if 0 < fewer < rows:
            yield fewer, rows
            if size > WHOLE_BYTES:
                return
    yield None


def write_debug_folder(
    referee: Referee,
    attempt: Attempt,
    folder: Path,
    inputs: Sequence[Tensor] | None = None,
    rows: int | None = None,
    *,
    device_lock: DeviceLock = UNSHARED,
) -> None:
    """Write the attempt, its model spec, and one set of weights and inputs to `folder / SHARED`.

    Another process can then repeat the call. `inputs` belong to the oracle's last draw; None draws
    new ones. With `rows` each input is cut to its first `rows` rows. `device_lock` is shared while
    tensors are copied from the device, but not while the files are written.
    """
    given = _inputs(referee) if inputs is None else inputs
    target = _shared_folder(referee, attempt, folder, SHARED)
    cut = given if rows is None else [t[:rows] for t in given]
    _write_tensors(target / WEIGHTS, referee.context.weights.tensors(), device_lock)
    _write_tensors(target / INPUTS, cut, device_lock)


def _shared_folder(referee: Referee, attempt: Attempt, folder: Path, name: str) -> Path:
    """Write the attempt and its model spec to a new folder `folder / name`, which is returned."""
    seed, target = Seeds().draw(), folder / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o755)
    attempt.write(target)
    model_spec = referee.processes.model_spec(seed)
    (target / "order.json").write_text(json.dumps(model_spec.to_json()))
    return target


def _write_tensors(file: Path, tensors: Sequence[Tensor], device_lock: DeviceLock) -> None:
    """Save tensors to a file. `device_lock` is shared while they are copied from the device, but
    not while the file is written."""
    import torch

    with device_lock.shared():  # copied, because torch saves the whole storage of a slice
        kept = [t.cpu() if t.is_cuda else t.clone() for t in tensors]
    torch.save(kept, file)


def _note(report: Report) -> str:
    first = next(iter(report.text.splitlines()), "")
    return f"compute-sanitizer {report.tool}: {report.outcome}{first and f': {first}'}"
