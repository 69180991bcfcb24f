"""Check an accepted candidate with NVIDIA's compute-sanitizer, if it is installed.

It finds faults that no output shows: accesses outside a buffer that the candidate allocated, races
in shared memory, reads of uninitialised memory. It runs in the candidate's process, so it finds
mistakes and not cheats, and a clean report is no proof. Each of its tools checks one call on the
task's own inputs. torch's caching allocator is off, because the driver regards accesses inside the
allocator's pool as legal.

Only kernels that the attempt defines are instrumented, found by name: with those of cuDNN and
cuBLAS the tools took 60 to 172 s. Inputs of more than `LARGE_BYTES` are cut along their first
dimension, if the attempt's kernels still run. The verdict's notes say what was covered.

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import UNSHARED, DeviceLock
from cuagent.sandbox import SandboxError, Tier
from cuagent.sandbox.beneath import open_folder, read_beneath
from cuagent.task import Device
from cuagent.task.memory import free
from cuagent.verdict import Reason, Verdict
from cuagent.verify.compute_sanitizer import (
    LAUNCHES,
    MAX_READ,
    Outcome,
    Report,
    read,
    run,
    sandboxed,
    sanitizer,
)
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.own_kernels import allocates, built_kernels, own_kernels
from cuagent.verify.referee import Referee
from cuagent.worker.single import REACHED

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.worker.memory.arena import Leaf

INITCHECK = "initcheck"
TOOLS = ("memcheck", "racecheck", INITCHECK)
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
SHARED = "shared"
"""Name of the folder with the files that all tools read."""
UNCONFIRMED = (
    "a kernel reads memory that none of the attempt's kernels wrote; the check if a library's "
    "kernel wrote it exceeded its time limit"
)
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

    @property
    def coverage(self) -> str:
        """Note for the verdict: the kernels and inputs that compute-sanitizer covered."""
        if not self.kernels:
            return "compute-sanitizer did not run: the attempt defines no kernel of its own"
        inputs = "the task's own inputs"
        if self.rows is not None:
            inputs = f"the first {self.rows[0]} of {self.rows[1]} rows of {inputs}"
        reached = sorted({name for report in self.reports for name in report.reached})
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
    rows = None
    try:
        with device_lock.shared() as give_way, referee.giving_way(give_way):
            inputs = _inputs(referee)
        for rows in _cuts(inputs, referee.facts.layouts.output.leaves):
            write_debug_folder(
                referee, attempt, folder, inputs, rows and rows[0], device_lock=device_lock
            )
            at_once = len(tools) if _all_fit(referee, len(tools), rows) else 1
            with ThreadPoolExecutor(at_once) as executor:
                reports = tuple(
                    executor.map(
                        lambda tool: _report(
                            program,
                            tool,
                            _tool_folder(referee, attempt, folder, tool),
                            build,
                            referee.tier,
                            kernels,
                            budget_s - (time.monotonic() - begun),
                            device_lock,
                        ),
                        tools,
                    )
                )
            if rows is None or not _missed(reports, build):
                break
    except SandboxError as error:
        reports = (Report(tools[0], Outcome.UNKNOWN, str(error)),)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Check(reports, tuple(sorted(kernels)), rows, time.monotonic() - begun)


def _tool_folder(referee: Referee, attempt: Attempt, folder: Path, tool: str) -> Path:
    """Create a folder for one tool, with the shared files and the attempt's compiled files.

    Its name is new, because the folder of an earlier call may contain files that cannot be removed.
    """
    own = Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=folder))
    shutil.copytree(folder / SHARED, own, copy_function=os.link, dirs_exist_ok=True)
    own.chmod(0o755)
    referee.processes.compiled.copy_to(attempt, own)
    return own


def _report(
    program: Path,
    tool: str,
    own: Path,
    build: Build,
    tier: Tier,
    kernels: Collection[str],
    seconds: float,
    lock: DeviceLock,
) -> Report:
    """Run one tool in the folder `own` for at most `seconds`; return its report."""
    begun = time.monotonic()
    command = sandboxed(program, tool, own, build, tier, kernels)
    report = read(tool, *run(command, own, max(seconds, 0.0), lock), kernels)
    reached = _reached(own)
    if tool == INITCHECK and report.outcome is Outcome.FAULTY:
        left = max(seconds - (time.monotonic() - begun), 0.0)
        command = sandboxed(program, tool, own, build, tier)
        confirmed = read(tool, *run(command, own, left, lock), kernels)
        report = (
            replace(confirmed, outcome=Outcome.UNKNOWN, text=UNCONFIRMED)
            if (confirmed.outcome is Outcome.UNKNOWN)
            else confirmed
        )
    return replace(report, reached=reached)


def _all_fit(referee: Referee, tools: int, rows: tuple[int, int] | None) -> bool:
    """Return True if the GPU's free memory is enough for the processes of all tools at the same
    time.
    """
    share = 1.0 if rows is None else rows[0] / rows[1]
    each = CONTEXT_BYTES + referee.facts.layouts.state.size + share * referee.bytes_per_call
    return tools * each <= free(referee.task.device.value)


def _missed(reports: Sequence[Report], build: Build) -> bool:
    """Return True if a call on fewer rows may have skipped the attempt's kernels.

    That is so if no tool completed, or if the call ran none of the attempt's library functions.
    """
    ended = [r for r in reports if r.outcome is not Outcome.UNKNOWN]
    return not ended or (bool(build.libraries) and not any(r.reached for r in ended))


def _reached(folder: Path) -> tuple[str, ...]:
    """Return the names of the library functions that the call ran, from a file of its process.

    The attempt's code shares that process, so the list proves nothing, and the file may be a link,
    a pipe or deeply nested JSON.
    """
    root = open_folder(folder)
    try:
        names = json.loads(read_beneath(root, REACHED, MAX_READ))
    except (OSError, ValueError, RecursionError):
        return ()
    finally:
        os.close(root)
    return tuple(map(str, names)) if isinstance(names, list) else ()


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
    counts = {shape[0] if shape else 0 for shape in [t.shape for t in inputs]}
    counts |= {leaf.shape[0] if leaf.shape else 0 for leaf in outputs}
    if size > LARGE_BYTES and len(counts) == 1:
        (rows,) = counts
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
    import torch

    given = _inputs(referee) if inputs is None else inputs
    seed = Seeds().draw()
    target = folder / SHARED
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o755)
    attempt.write(target)
    model_spec = referee.processes.model_spec(seed)
    (target / "order.json").write_text(json.dumps(model_spec.to_json()))
    cut = given if rows is None else [t[:rows] for t in given]
    tensors = {"inputs": cut, "weights": referee.context.weights.tensors()}
    # Copied, because torch saves the whole storage of a slice.
    with device_lock.shared():
        kept = {
            name: [t.cpu() if t.is_cuda else t.clone() for t in many]
            for name, many in tensors.items()
        }
    torch.save(kept, target / "data.pt")


def _note(report: Report) -> str:
    first = next(iter(report.text.splitlines()), "")
    return f"compute-sanitizer {report.tool}: {report.outcome}{first and f': {first}'}"
