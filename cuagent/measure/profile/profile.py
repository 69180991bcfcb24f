"""Describe for an agent how a model spends its time: by operator and by kernel.

Each operator and kernel has its time and its rates, compared with the device's ceilings. Notes
state what bounds the whole model. `Profile.counters` has hardware counters (ncu) if they were
requested and may be read.

Not covered: how the figures are measured (`session.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cuagent.build.result import KernelResources
from cuagent.build.vectors import Loop
from cuagent.measure.profile.counters import Counters
from cuagent.measure.roofline.model import ABOVE, OperatorWork, Roofline, Work, amount, seconds_text
from cuagent.measure.system_load import BUSY_SHARE

MAX_LINES = 60
"""Largest number of lines that `Profile.lines` returns."""
AGENT = 120
"""Width in characters of a report for an agent: names of kernels up to 52 are not cut."""
MAX_LOOPS = 16
"""Largest number of loops in a report, with one line each."""
COUNTED_AS = {"clamp_min": "relu", "relu": ""}
"""Translation of operator names from the profiler to the counted work (`Work.operators`), where
they differ. "" means that the work is counted for another operator."""
NOT_REQUESTED = "not asked for; they show occupancy, stalls, bank conflicts, wasted sectors"
ROUGH_FACTOR = 1.5
"""If the operators' summed time exceeds this many times a call's time, the figures are called
imprecise, because the profiler's overhead dominates."""
FIGURES, GAP, RATES, BAR, NAME = 26, 10, 33, 9, 14
"""Widths in characters of the columns of a table: calls, time and share; launch gap; rates compared
with the ceilings; bar; shortest name."""


class ProfileError(Exception):
    """Error: the model could not be profiled. The message is one line."""


@dataclass(frozen=True)
class Cost:
    """Cost of one operator or kernel, per call of the model."""

    name: str
    calls: float
    seconds: float
    """Seconds, without the time of operators that this one calls."""
    share: float
    """Share of the summed time of all operators, or of all kernels; 1 is all."""
    bytes_per_s: float | None = None
    """Bytes that the operator reads and writes in eager mode, per second of its time; None if not
    counted."""
    flop_per_s: float | None = None
    gap: float = 0.0
    """Seconds that the GPU is idle before the kernel, under the profiler, which lengthens them; 0
    for an operator."""


@dataclass(frozen=True)
class Profile:
    """Profile of one model. All seconds are per call of the model."""

    subject: str
    seconds: float
    """Wall time of a call, measured without the profiler."""
    operators: tuple[Cost, ...]
    """torch's operators, longest first. Their time is CPU time; on CUDA that is the time of the
    launches."""
    kernels: tuple[Cost, ...]
    """Kernels that ran on the GPU, longest first; () on the CPU."""
    roofline: Roofline
    own: Work
    """Work of this model, as far as it is done by torch's operators."""
    busy: float | None
    """Seconds with at least one kernel running on the GPU; None on the CPU."""
    busy_threads: float
    """Mean number of threads of the process that were busy during a call."""
    threads: int
    memory: int | None
    """Largest number of bytes that torch allocated on the GPU; None on the CPU."""
    resources: tuple[KernelResources, ...] = ()
    counters: tuple[Counters, ...] = ()
    """Hardware counters of each kernel launch, if they were requested and may be read."""
    missing: str = ""
    """Reason why requested hardware counters could not be read; "" if they were."""
    loops: tuple[Loop, ...] = ()
    """CPU only: the loops of the attempt's kernels, and whether the compiler vectorised them."""
    others: float = 0.0
    """Share of the machine's processors that other processes used during the profile."""

    @property
    def on_cuda(self) -> bool:
        return self.busy is not None

    def lines(self, width: int = AGENT) -> list[str]:
        """Return the report for an agent, at most MAX_LINES lines of `width` characters."""
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
        tables += [
            f"{_short(c.kernel, max(40, width - 100))}: {c.line()}" for c in self.counters[:12]
        ]
        missing = self.missing or ("" if self.counters or not self.on_cuda else NOT_REQUESTED)
        tables += [f"no hardware counters: {missing}"] if missing else []
        rows = [line[:width].rstrip() if "|" in line else line for line in head + tables]
        loops = [f"loop {loop.shown(max(width, 100) - 5)}" for loop in self.loops[:MAX_LOOPS]]
        more = len(self.loops) - MAX_LOOPS
        loops += [f"... and {more} more loops"] if more > 0 else []
        return [*rows[: MAX_LINES - len(loops)], *loops]

    def notes(self) -> list[str]:
        """Return conclusions from the figures in sentences, the most important first."""
        notes = []
        if self.busy is not None:
            idle = max(0.0, 1 - self.busy / self.seconds)
            launches = sum(kernel.calls for kernel in self.kernels)
            notes.append(
                f"GPU busy {seconds_text(self.busy)} of it in {launches:.0f} kernels"
                + (f"; idle {idle:.0%}: bound by launches and the host" if idle > 0.3 else "")
            )
            notes += self._gaps()
        elif self.threads > 1:
            notes.append(f"{self.busy_threads:.1f} of {self.threads} threads busy")
        work = self.roofline.work
        moved = self.own.bytes_eager
        if work.bytes and moved > 1.5 * work.bytes:
            notes.append(
                f"torch operators move {amount(moved)}B, {moved / work.bytes:.1f}x the compulsory "
                f"{amount(work.bytes)}B: fusing them saves the difference"
            )
        dram = sum(launch.dram_bytes for launch in self.counters)
        if work.bytes and dram:
            notes.append(
                f"kernels move {amount(dram)}B over DRAM, {dram / work.bytes:.1f}x the compulsory "
                f"{amount(work.bytes)}B (cold caches, under ncu)"
            )
        for resource in self.resources:
            if resource.spill_bytes:
                notes.append(f"{resource.name} spills {resource.spill_bytes} bytes of registers")
        notes += self._rough()
        if self.roofline.suspect(self.seconds):
            notes.append("faster than memory allows: check that all of the work is done")
        elif self.roofline.share(self.seconds) > 1:
            notes.append(ABOVE)
        return notes

    def _rough(self) -> list[str]:
        """Return the reasons why the figures are imprecise, as notes."""
        notes = []
        spent = sum(operator.seconds for operator in self.operators)
        if not self.on_cuda and spent > ROUGH_FACTOR * self.seconds:
            notes.append(
                f"the operators add up to {seconds_text(spent)}, {spent / self.seconds:.1f}x the "
                "call: the profiler costs more than they do, their shares are rough"
            )
        if self.others > BUSY_SHARE:
            notes.append(
                f"machine busy: {self.others:.0%} used by other processes, which lengthens times"
            )
        return notes

    def _gaps(self) -> list[str]:
        """Return [note] if the kernels' launch gaps exceed a tenth of their time, else []."""
        gaps = sum(kernel.gap for kernel in self.kernels)
        if not self.busy or gaps < 0.1 * self.busy:
            return []
        longest = max(self.kernels, key=lambda kernel: kernel.gap)
        return [
            f"launch gaps: the GPU waits {seconds_text(gaps)} between kernels under the profiler, "
            f"{seconds_text(longest.gap)} of it before {_short(longest.name, 120)}"
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "notes": self.notes(),
            "floor": self.roofline.floor,
            "bound": self.roofline.bound,
            "share": self.roofline.share(self.seconds),
        }


def costs_of(
    rows: Iterable[Mapping[str, Any]], work: Mapping[str, OperatorWork], *, on_cuda: bool
) -> tuple[Cost, ...]:
    """Return the cost of each row of the profiler's table, longest first.

    Rows below 0.1 % of the time are left out. `work` is the counted work of each operator by name.
    """
    rows = list(rows)
    total = sum(row["seconds"] for row in rows) or 1.0
    costs = []
    for row in sorted(rows, key=lambda row: -row["seconds"]):
        name, seconds = str(row["name"]), float(row["seconds"])
        counted_work = work.get(_operator(name))
        # On CUDA an operator's own time is the host's, and its bytes move in its kernels. On the
        # CPU an operator that delegates its work (logsumexp) is rated by the time of the operators
        # it calls.
        total_s = float(row.get("total_seconds") or seconds)
        own_s = total_s if total_s > 2 * seconds else seconds
        working = float(row.get("device_seconds") or (0 if on_cuda else own_s))
        counted = counted_work if working > 0 else None
        costs.append(
            Cost(
                name,
                float(row["calls"]),
                seconds,
                seconds / total,
                counted.bytes / working if counted and counted.bytes else None,
                counted.flops / working if counted and counted.flops else None,
                float(row.get("gap") or 0.0),
            )
        )
    return tuple(cost for cost in costs if cost.share >= 0.001)


def _operator(name: str) -> str:
    """Return the name of a profiled operator in the counted work (`Work.operators`), or ""."""
    plain = name.removeprefix("aten::")
    if plain.endswith("_convolution"):
        return "convolution"
    return COUNTED_AS.get(plain, plain)


def _table(kind: str, costs: tuple[Cost, ...], width: int, roof: Roofline) -> list[str]:
    if not costs:
        return []
    copy, rate = roof.ceilings.copy, roof.ceilings.rate(roof.unit)
    gaps = any(cost.gap for cost in costs)
    has_rates = any(cost.bytes_per_s or cost.flop_per_s for cost in costs)
    spare = width - FIGURES - GAP * gaps - NAME
    rated = has_rates and spare >= RATES
    spare -= RATES * rated
    barred = spare >= BAR
    room = NAME + max(0, spare - BAR * barred)
    room = max(len(kind), *(len(_short(cost.name, room)) for cost in costs))
    waited = f" {'gap':>9}" * gaps
    against = "against the ceilings" * rated
    head = f"{kind:<{room}} {'calls':>6} {'time':>9} {'share':>6}{waited} | {against}"
    lines = ["", head]
    for cost in costs:
        rates = []
        if rated and cost.bytes_per_s:
            rates.append(f"{amount(cost.bytes_per_s)}B/s {cost.bytes_per_s / copy:.0%}")
        if rated and cost.flop_per_s:
            rates.append(f"{amount(cost.flop_per_s)}FLOP/s {cost.flop_per_s / rate:.0%}")
        name = _short(cost.name, room)
        lines.append(
            f"{name:<{room}} {cost.calls:>6.4g} {seconds_text(cost.seconds):>9} "
            f"{cost.share:>6.0%}{f' {seconds_text(cost.gap):>9}' * gaps} | "
            + " ".join(filter(None, [_bar(cost.share) * barred, ", ".join(rates)]))
        )
    return lines


def _bar(share: float) -> str:
    return ("█" * round(8 * share)).ljust(8, "·")


def _short(name: str, width: int) -> str:
    """Return a kernel's name without its template arguments and return type, at most `width`
    characters."""
    name = name.removeprefix("void ").replace("at::native::", "")
    for namespace in ("(anonymous namespace)::", "<unnamed>::"):
        name = name.replace(namespace, "")
    if len(name) > width and "<" in name:
        name = name[: name.index("<")]
    return name if len(name) <= width else name[: width - 1] + "…"


def _resource_line(resource: KernelResources) -> str:
    return (
        f"{resource.name}: {resource.registers} registers, {resource.shared_bytes} B shared, "
        f"{resource.spill_bytes} B spilled, {resource.stack_bytes} B stack"
    )
