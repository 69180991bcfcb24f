"""Read hardware counters of each kernel with Nsight Compute, if the user may read them.

`read` parses the output of `ncu --csv --page raw`; `Counters` formats one launch for an agent. ncu
runs each kernel many times and serially, so the figures are feedback, never a time.

Not covered: source lines. ncu does not fix the clocks (`--clock-control none`).
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cuagent.worker.supervised import Supervised

MAX_READ = 64 << 20
"""Largest number of bytes read from ncu's output."""
STALL = "smsp__pcsamp_warps_issue_stalled_"
METRICS = {
    "seconds": "gpu__time_duration.sum",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes_read": "dram__bytes_read.sum",
    "dram_bytes_written": "dram__bytes_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "limit_registers": "launch__occupancy_limit_registers",
    "limit_shared": "launch__occupancy_limit_shared_mem",
    "limit_warps": "launch__occupancy_limit_warps",
    "limit_blocks": "launch__occupancy_limit_blocks",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
}
"""Metrics to request from ncu: the name in `Counters.values`, then ncu's name."""
SECTION_METRICS = {
    "waves": "launch__waves_per_multiprocessor",
    "possible_pct": "sm__maximum_warps_per_active_cycle_pct",
    "global_sectors": "memory_l2_theoretical_sectors_global",
    "global_ideal": "memory_l2_theoretical_sectors_global_ideal",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_ideal": "memory_l1_wavefronts_shared_ideal",
    "spilling": "sass__inst_executed_register_spilling",
}
"""Metrics that ncu reports with `SECTIONS`: the name in `Counters.values`, then ncu's name."""
SECTIONS = ("WarpStateStats", "SourceCounters", "Occupancy", "LaunchStats")
EXCESS_FACTOR = 1.1
"""A memory access is reported if it takes more than this many times the necessary sectors (global
memory) or passes (shared memory)."""
IN_USE_PCT = 5.0
"""Percentage of use below which tensor cores count as idle: kernels without them show 1 to 2 %."""


InSandbox = Callable[[list[str]], list[str]]
"""Function that takes a command and returns the command that runs it in a sandbox."""


@dataclass(frozen=True)
class Counters:
    """Hardware counters of one kernel launch."""

    kernel: str
    values: dict[str, float]
    """Values in seconds, bytes or percent, by the names in `METRICS` and `SECTION_METRICS`. A
    metric that ncu did not report is absent."""
    stalls: tuple[tuple[str, float], ...]
    """Most frequent reasons why warps stalled, each with its share of the samples."""

    @property
    def limiter(self) -> str:
        """Return the resource that limits the blocks per multiprocessor: registers, shared, ..., or
        "too few blocks"."""
        if self.values.get("waves", 1) < 1:
            return "too few blocks"
        limits = {n: v for n, v in self.values.items() if n.startswith("limit_")}
        return min(limits, key=lambda n: limits[n]).removeprefix("limit_") if limits else "?"

    @property
    def dram_bytes(self) -> float:
        """Return the bytes read from and written to DRAM together."""
        return self.values.get("dram_bytes_read", 0.0) + self.values.get("dram_bytes_written", 0.0)

    def excess(self, what: str, needed: str) -> float:
        """Return the ratio of the counter `what` to `needed`, its ideal value; 1 if `needed` is
        unknown."""
        least = self.values.get(needed, 0.0)
        return self.values.get(what, 0.0) / least if least else 1.0

    def line(self) -> str:
        """Return the counters that an agent can act on, as one line of text."""
        v = self.values
        possible = f" of {v['possible_pct']:.0f}" * ("possible_pct" in v)
        parts = [
            f"SM {v.get('sm_pct', 0):.0f} %, DRAM {v.get('dram_pct', 0):.0f} %",
            f"occupancy {v.get('occupancy_pct', 0):.0f}{possible} % (limit: {self.limiter})",
            f"{v.get('registers', 0):.0f} registers",
            f"L2 hits {min(100.0, v.get('l2_hit_pct', 0)):.0f} %",
        ]
        busy = v.get("tensor_pct", 0.0)
        parts.append(f"tensor cores {f'{busy:.0f} %' if busy >= IN_USE_PCT else 'idle'}")
        if v.get("spilling"):
            parts.append(f"{v['spilling']:.0f} instructions spill")
        if (times := self.excess("global_sectors", "global_ideal")) > EXCESS_FACTOR:
            parts.append(f"uncoalesced: {times:.1f}x the sectors needed")
        if (times := self.excess("shared_wavefronts", "shared_ideal")) > EXCESS_FACTOR:
            parts.append(f"bank conflicts: {times:.1f}x the passes needed")
        if self.stalls:
            parts.append("stalls " + ", ".join(f"{n} {share:.0%}" for n, share in self.stalls))
        return "; ".join(parts)


class CountersMissing(Exception):
    """Error: the counters could not be read. The message is one line."""


def run(
    program: list[str],
    environment: dict[str, str],
    folder: Path,
    seconds: float,
    in_sandbox: InSandbox = list,
) -> str:
    """Run `program` under ncu and return ncu's output for the kernels in the profiled range.

    `seconds` is the time limit. `in_sandbox` wraps the whole command: the program cannot enter a
    sandbox later, because what ncu injects into it has threads. Raises CountersMissing.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountersMissing("ncu is not installed")
    sections = [word for name in SECTIONS for word in ("--section", name)]
    options = ["--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    argv = [ncu, *options, *sections, "--metrics", ",".join(METRICS.values()), *program]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with Supervised(in_sandbox(argv), folder, environment, output, errors) as process:
            if not process.wait(seconds):
                raise CountersMissing(
                    f"ncu took more than {seconds:.0f} s; profile without counters, or give "
                    "smaller inputs (--inputs)"
                )
        output.seek(0)
        errors.seek(0)
        text = output.read(MAX_READ).decode(errors="replace")
        said = errors.read(MAX_READ).decode(errors="replace")
    if '"Kernel Name"' not in text:
        last = (text + said).strip().splitlines()[-1:]
        raise CountersMissing(f"ncu read nothing: {last[0][:200] if last else 'no output'}")
    return text


def read(text: str, limit: int = 40) -> list[Counters]:
    """Parse ncu's output: return the counters of the first `limit` kernel launches, in order."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 3:
        return []
    names, units = rows[0], rows[1]
    return [_one(dict(zip(names, zip(row, units, strict=True), strict=True))) for row in rows[2:]][
        :limit
    ]


def _one(row: dict[str, tuple[str, str]]) -> Counters:
    values = {
        name: number
        for name, metric in (METRICS | SECTION_METRICS).items()
        if metric in row and (number := _number(*row[metric])) is not None
    }
    return Counters(row["Kernel Name"][0], values, _stalls(row.items()))


def _stalls(items: Iterable[tuple[str, tuple[str, str]]]) -> tuple[tuple[str, float], ...]:
    samples = {
        name.removeprefix(STALL): number
        for name, cell in items
        if name.startswith(STALL) and not name.endswith("_not_issued")
        if (number := _number(*cell)) is not None
    }
    total = sum(samples.values())
    waiting = [(n, s / total) for n, s in samples.items() if n != "selected" and s and total]
    return tuple(sorted(waiting, key=lambda pair: -pair[1])[:3])


def _number(text: str, unit: str) -> float | None:
    """Return a value of ncu's output in seconds or bytes; other units unchanged; None if it is no
    number.

    ncu separates thousands with commas.
    """
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    try:
        return float(text.replace(",", "")) * factor.get(unit, 1.0)
    except ValueError:
        return None
