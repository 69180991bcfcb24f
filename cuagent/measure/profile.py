"""Where the time of a task or an attempt goes, for an agent to act on.

Operators and kernels with their time, what they move and compute against the device's ceilings, and
notes that say what bounds the whole. The figures come from a child process that the attempt's code
shares (`profiled.py`): feedback, never a verdict or a time of record. Hardware counters (ncu) have
their place in `Profile.counters`, filled where they were asked for and may be read.
"""

from __future__ import annotations

import json
import select
import shutil
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cuagent import kernels
from cuagent.attempt import Attempt
from cuagent.build.result import Build, KernelResources
from cuagent.kernels.compiler import BUILD
from cuagent.measure.ceilings import Ceilings, ceilings
from cuagent.measure.counters import Counters, CountersMissing, read, run
from cuagent.measure.profiled import ORDER, POLICY, RESULT
from cuagent.measure.roofline import OperatorWork, Roofline, Work, amount, seconds_text
from cuagent.sandbox import Policy, probe
from cuagent.task import Device, Task
from cuagent.worker import Nursery, Order
from cuagent.worker.arms import CANDIDATE, EAGER
from cuagent.worker.channel import send_message
from cuagent.worker.nursery import kept_environment

DEADLINE_S = 120.0
COUNTERS_S = 60.0
LARGEST_RESULT = 8 << 20
"""Bytes; what the child writes is read no further."""
MOST_LINES = 60
KERNELS = Path(kernels.__file__).parent
"""The loader, which an attempt imports; of cuagent it may read no more."""
SPENT_IN = {"clamp_min": "relu", "relu": ""}
"""Operators whose time the profiler books under another name than the one they are called by."""


class ProfileError(Exception):
    """The model did not get through its profile. One line."""


@dataclass(frozen=True)
class Cost:
    """One operator or kernel, per call of the model."""

    name: str
    calls: float
    seconds: float
    """Its own, what it calls left out."""
    share: float
    """Of the time of all of its kind."""
    bytes_per_s: float | None = None
    """What eager moves for it over its time, where that could be counted."""
    flop_per_s: float | None = None


@dataclass(frozen=True)
class Profile:
    """Where the time of one model goes. Seconds are per call of the model."""

    subject: str
    seconds: float
    """Wall time of a call, without the profiler."""
    operators: tuple[Cost, ...]
    """By time, longest first: on the CPU where it is spent, on CUDA what the host does."""
    kernels: tuple[Cost, ...]
    """CUDA only, longest first."""
    roofline: Roofline
    own: Work
    """What this model itself moves and computes, as far as torch's operators show."""
    busy: float | None
    """CUDA: seconds with at least one kernel running."""
    busy_threads: float
    """Mean number of running threads."""
    threads: int
    memory: int | None
    """CUDA: largest number of bytes allocated."""
    resources: tuple[KernelResources, ...] = ()
    counters: tuple[Counters, ...] = ()
    """Of each launch; hardware counters where they were asked for and may be read."""
    missing: str = ""
    """Why there are no counters though they were asked for."""

    @property
    def on_cuda(self) -> bool:
        return self.busy is not None

    def lines(self, width: int = 100) -> list[str]:
        """At most 60 lines of text."""
        head = [
            f"{self.subject} on {self.roofline.ceilings.device}: "
            f"{seconds_text(self.seconds)} a call",
            self.roofline.line(self.seconds),
            *(f"- {note}" for note in self.notes()),
        ]
        tables = _table("kernel", self.kernels[:14], width, self.roofline)
        room = 10 if self.kernels else 24
        tables += _table("operator", self.operators[:room], width, self.roofline)
        tables += [_resource_line(resource) for resource in self.resources[:12]]
        tables += [f"{_short(c.kernel, 40)}: {c.line()}" for c in self.counters[:12]]
        tables += [f"no hardware counters: {self.missing}"] if self.missing else []
        return [line[:width] if "|" in line else line for line in head + tables][:MOST_LINES]

    def notes(self) -> list[str]:
        """What the figures say, most telling first."""
        said = []
        if self.busy is not None:
            idle = max(0.0, 1 - self.busy / self.seconds)
            launches = sum(kernel.calls for kernel in self.kernels)
            said.append(
                f"GPU busy {seconds_text(self.busy)} of it in {launches:.0f} kernels"
                + (f"; idle {idle:.0%}: bound by launches and the host" if idle > 0.3 else "")
            )
        elif self.threads > 1:
            said.append(f"{self.busy_threads:.1f} of {self.threads} threads busy")
        work = self.roofline.work
        moved = self.own.bytes_eager
        if work.bytes and moved > 1.5 * work.bytes:
            said.append(
                f"torch operators move {amount(moved)}B, {moved / work.bytes:.1f}x the compulsory "
                f"{amount(work.bytes)}B: fusing them saves the difference"
            )
        for resource in self.resources:
            if resource.spill_bytes:
                said.append(f"{resource.name} spills {resource.spill_bytes} bytes of registers")
        if self.roofline.suspect(self.seconds):
            said.append("faster than memory allows: is the work done?")
        return said

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "notes": self.notes(),
            "floor": self.roofline.floor,
            "bound": self.roofline.bound,
            "share": self.roofline.share(self.seconds),
        }


def profile(
    task: Task,
    attempt: Attempt | None = None,
    build: Build | None = None,
    *,
    nursery: Nursery | None = None,
    cache: Path | None = None,
    counters: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Profile:
    """Profile the reference, or an attempt that was built. Raises ProfileError, NurseryError.

    `nursery` saves the seconds that importing torch takes; `cache` is where ceilings are kept;
    `counters` asks for hardware counters too, which takes some ten seconds and a GPU.
    """
    folder = Path(tempfile.mkdtemp(prefix="cuagent-profile-"))
    try:
        folder.chmod(0o755)
        if attempt is not None:
            attempt.write(folder)
        order = _order(task, EAGER if attempt is None else CANDIDATE)
        (folder / ORDER).write_text(json.dumps(order.to_json()))
        with nullcontext(nursery) if nursery is not None else Nursery() as warm:
            environment = _environment(folder, build)
            message: dict[str, Any] = {"policy": None}
            if attempt is not None:
                policy = _policy(task, folder, environment)
                message = {"policy": policy.to_json(), "tier": probe()}
            figures = _run(warm, folder, environment, message, deadline_s)
        launches, missing = _counted(folder, environment, message) if counters else ((), "")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    subject = task.name if attempt is None else f"attempt {attempt.digest[:8]}"
    try:
        found = _profile(subject, figures, ceilings(task.device, cache=cache), task, build)
        if found.roofline.beaten(found.seconds):
            limits = ceilings(task.device, cache=cache, doubted=True)
            found = replace(found, roofline=replace(found.roofline, ceilings=limits))
        return replace(found, counters=launches, missing=missing)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The child's process is the attempt's too: it may have written anything.
        raise ProfileError(f"the profile cannot be read: {error!r}") from error


def _counted(
    folder: Path, environment: dict[str, str], message: dict[str, Any]
) -> tuple[tuple[Counters, ...], str]:
    """What ncu reads of one call, and why it reads nothing."""
    (folder / POLICY).write_text(json.dumps(message))
    root = str(Path(kernels.__file__).parents[2])
    program = (
        f"import sys; sys.path.append({root!r}); from pathlib import Path;"
        f"from cuagent.measure.profiled import once; once(Path({str(folder)!r}))"
    )
    argv = [sys.executable, "-I", "-B", "-c", program]
    try:
        text = run(argv, kept_environment() | environment, folder, COUNTERS_S)
    except CountersMissing as why:
        return (), str(why)
    return tuple(read(text)), ""


def _order(task: Task, arm: str) -> Order:
    """Specs stay empty: the child opens the task and finds them out itself."""
    return Order(arm, task.device, task.precision, {}, {}, (), {}, 0, task)


def _environment(folder: Path, build: Build | None) -> dict[str, str]:
    places = dict.fromkeys(
        str(library.path.parent) for library in (build.libraries if build else ())
    )
    private = {"HOME": str(folder), "TMPDIR": str(folder)}
    return private | ({BUILD: ":".join(places)} if places else {})


def _policy(task: Task, folder: Path, environment: dict[str, str]) -> Policy:
    libraries = [Path(place) for place in environment.get(BUILD, "").split(":") if place]
    return Policy(
        read=(task.path.parent, KERNELS, *libraries),
        write=(folder,),
        gpu=task.device is Device.CUDA,
        fds=(0, 1, 2, 3),
        environment=tuple(environment.items()),
    )


def _run(
    nursery: Nursery,
    folder: Path,
    environment: dict[str, str],
    message: dict[str, Any],
    seconds: float,
) -> Any:
    child = nursery.fork("cuagent.measure.profiled", folder, environment)
    try:
        send_message(child.channel, message)
        # The child never sends: the channel becomes readable when it has ended.
        ended, _, _ = select.select([child.channel], [], [], seconds)
    finally:
        nursery.end(child)
    if not ended:
        raise ProfileError(f"no profile within {seconds:.0f} s")
    try:
        with (folder / RESULT).open("rb") as file:
            text = file.read(LARGEST_RESULT)
        figures = json.loads(text)
    except (OSError, ValueError) as error:
        raise ProfileError(f"the process ended without a profile ({error})") from error
    if "error" in figures:
        raise ProfileError(str(figures["error"]))
    return figures


def _profile(
    subject: str, figures: dict[str, Any], limits: Ceilings, task: Task, build: Build | None
) -> Profile:
    own = Work.from_json(figures["own_work"])
    libraries = build.libraries if build else ()
    on_cuda = task.device is Device.CUDA
    return Profile(
        subject=subject,
        seconds=float(figures["seconds"]),
        operators=_costs(figures["operators"], own.operators, on_cuda),
        kernels=_costs(figures["kernels"], {}, on_cuda),
        roofline=Roofline(Work.from_json(figures["work"]), limits, str(figures["unit"])),
        own=own,
        busy=float(figures["busy"]) if on_cuda else None,
        busy_threads=float(figures["busy_threads"]),
        threads=int(figures["threads"]),
        memory=figures["memory"],
        resources=tuple(r for library in libraries for r in library.resources),
    )


def _costs(
    rows: list[dict[str, Any]], work: dict[str, OperatorWork], on_cuda: bool
) -> tuple[Cost, ...]:
    total = sum(row["seconds"] for row in rows) or 1.0
    costs = []
    for row in sorted(rows, key=lambda row: -row["seconds"]):
        name, seconds = str(row["name"]), float(row["seconds"])
        known = work.get(_operator(name))
        # On CUDA an operator's own time is the host's; what it moves, it moves in its kernels.
        working = float(row.get("device_seconds") or (0 if on_cuda else seconds))
        counted = known is not None and working > 0
        costs.append(
            Cost(
                name,
                float(row["calls"]),
                seconds,
                seconds / total,
                known.bytes / working if known and counted and known.bytes else None,
                known.flops / working if known and counted and known.flops else None,
            )
        )
    return tuple(cost for cost in costs if cost.share >= 0.001)


def _operator(name: str) -> str:
    """The name under which the work of a profiled operator was counted."""
    plain = name.removeprefix("aten::")
    if plain.endswith("_convolution"):
        return "convolution"
    return SPENT_IN.get(plain, plain)


def _table(kind: str, costs: tuple[Cost, ...], width: int, roof: Roofline) -> list[str]:
    if not costs:
        return []
    copy, rate = roof.ceilings.copy, roof.ceilings.rate(roof.unit)
    room = max(20, width - 76)
    lines = ["", f"{kind:<{room}} {'calls':>6} {'time':>9} {'share':>6} | against the ceilings"]
    for cost in costs:
        rates = []
        if cost.bytes_per_s:
            rates.append(f"{amount(cost.bytes_per_s)}B/s {cost.bytes_per_s / copy:.0%}")
        if cost.flop_per_s:
            rates.append(f"{amount(cost.flop_per_s)}FLOP/s {cost.flop_per_s / rate:.0%}")
        name = _short(cost.name, room)
        lines.append(
            f"{name:<{room}} {cost.calls:>6.4g} {seconds_text(cost.seconds):>9} "
            f"{cost.share:>6.0%} | {_bar(cost.share)} {', '.join(rates)}"
        )
    return lines


def _bar(share: float) -> str:
    return ("█" * round(8 * share)).ljust(8, "·")


def _short(name: str, width: int) -> str:
    """A kernel's name without the template arguments and the return type that fill the line."""
    name = name.removeprefix("void ").replace("at::native::", "")
    name = name.replace("(anonymous namespace)::", "")
    if len(name) > width and "<" in name:
        name = name[: name.index("<")]
    return name if len(name) <= width else name[: width - 1] + "…"


def _resource_line(resource: KernelResources) -> str:
    return (
        f"{resource.name}: {resource.registers} registers, {resource.shared_bytes} B shared, "
        f"{resource.spill_bytes} B spilled, {resource.stack_bytes} B stack"
    )
