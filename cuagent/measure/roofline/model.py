"""Compute the floor of a task: its compulsory bytes and operations over the device's ceilings.

`work` counts bytes and operations. Another algorithm than the reference's (Winograd, folding) may
need fewer operations, and a kernel may read the result of a computation on weights, made once, in
place of the weights. So only the traffic of inputs and outputs bounds the time of every kernel
(`Roofline.least_seconds`). Not covered: special functions, launch overhead.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cuagent.measure.roofline.ceilings import Ceilings
from cuagent.timing import Floor

ABOVE = (
    "over 100% of the roofline: the machine was busy when its limits were measured, or less "
    "arithmetic or fewer bytes of weights suffice"
)
"""Note on a time below the floor that is not suspect."""
SUSPECT = 0.9
"""Share of the least time of memory traffic below which a time is suspect. It is below 1 to allow
for noise in the measured bandwidth."""
EVICTED = 0.5
"""Least share of inputs smaller than the caches that a call reads from memory, although a timing
overwrites more than the caches before each call. A cache need not replace its oldest lines first.
"""


@dataclass(frozen=True)
class OperatorWork:
    """Work of all calls of one operator in one call of the model.

    `bytes` is the size of its arguments and results, which eager mode reads and writes.
    """

    calls: int
    bytes: int
    flops: int
    """Operations of matrix products, convolutions and attention: two for each multiply-add."""


@dataclass(frozen=True)
class Work:
    """Memory traffic and operations of one call of the reference."""

    bytes_in: int
    """Bytes of the inputs and weights that must be read, each counted once."""
    bytes_out: int
    """Bytes of the outputs that must be written; outputs that are views of inputs do not count."""
    matrix_flops: int
    """Operations of matrix products, convolutions and attention: two for each multiply-add."""
    other_flops: int
    """Estimated operations of all other operators: one per element of an operator's largest
    argument or result."""
    operators: dict[str, OperatorWork] = field(default_factory=dict)
    """Work of each operator that eager mode launches, by name; views are left out."""
    uncounted: tuple[str, ...] = ()
    """Names of operators whose operations are not counted. With any of them the compute floor is
    too low."""
    bytes_inputs: int = 0
    """Part of `bytes_in` that belongs to the inputs of the call: no weights, no constants."""

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out

    @property
    def bytes_eager(self) -> int:
        """Return the bytes that eager mode reads and writes, where every operator runs on its
        own."""
        return sum(operator.bytes for operator in self.operators.values())

    @staticmethod
    def from_json(data: dict[str, Any]) -> Work:
        operators = {name: OperatorWork(**fields) for name, fields in data["operators"].items()}
        return Work(**(data | {"operators": operators, "uncounted": tuple(data["uncounted"])}))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Roofline:
    """Floor of a task: its work and the ceilings of one device. Times are in seconds."""

    work: Work
    ceilings: Ceilings
    unit: str
    """Precision of the matrix rate that applies: fp32, tf32, bf16 or fp16."""
    evicts: bool = False
    """True if the caches are overwritten before each call that is timed, as on a GPU."""

    @property
    def memory_seconds(self) -> float:
        return self.work.bytes / self.ceilings.copy

    @property
    def compute_seconds(self) -> float:
        flops = self.work.matrix_flops / self.ceilings.rate(self.unit)
        return flops + self.work.other_flops / self.ceilings.fp32

    @property
    def floor(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> Literal["memory", "compute"]:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"

    @property
    def least_seconds(self) -> float:
        """Return the seconds in which memory can at best move what every correct kernel moves in
        each call: the inputs that outputs depend on, and the outputs.

        If caches may hold all that, it is 0, or a share of the time of the inputs if the caches are
        overwritten before each call. Outputs may remain in a cache when the call ends.
        """
        moved = self.work.bytes_inputs + self.work.bytes_out
        if moved <= 2 * self.ceilings.cache_bytes:
            moved = int(EVICTED * self.work.bytes_inputs) if self.evicts else 0
        return moved / self.ceilings.copy

    def share(self, seconds: float) -> float:
        """Return the floor divided by a measured time; 1 means that the time equals the floor."""
        return self.floor / seconds

    def suspect(self, seconds: float) -> bool:
        """Return True if a time is too short for the traffic of inputs and outputs, so that some
        work was probably skipped."""
        return self.ceilings.calm and seconds < SUSPECT * self.least_seconds

    @property
    def timing_floor(self) -> Floor:
        """Return the floor as the type that a Timing stores."""
        memory = SUSPECT * self.least_seconds if self.ceilings.calm else 0.0
        return Floor(self.floor, self.bound, memory)

    def beaten(self, seconds: float) -> bool:
        """Return True if a time is below the floor: the ceilings are too low and must be measured
        again."""
        return seconds < self.floor

    def line(self, seconds: float | None = None) -> str:
        """Return the floor as one line of text, with the share of it that a time of `seconds`
        reaches."""
        if not self.floor and not self.work.uncounted:
            return "no floor: nothing has to be moved or computed"
        rate = amount(self.ceilings.rate(self.unit))
        other = self.work.other_flops
        products = self.work.matrix_flops
        flops = [f"{amount(products)}FLOP at {rate}FLOP/s {self.unit}"]
        if other and self.bound == "compute":
            flops = [*(flops if products else []), f"{amount(other)}FLOP of other kinds"]
        text = (
            f"floor {seconds_text(self.floor)} ({self.bound}: "
            f"{amount(self.work.bytes)}B compulsory at {amount(self.ceilings.copy)}B/s, "
            f"{' and '.join(flops)})"
        )
        if self.work.uncounted:
            text += f", arithmetic of {', '.join(self.work.uncounted)} not counted"
        return text if seconds is None else f"{self.share(seconds):.0%} of the roofline; {text}"


def amount(value: float) -> str:
    """Format a number with a decimal prefix: `4.3 T`, `12 M`."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def seconds_text(seconds: float) -> str:
    """Format a time in the largest unit that it reaches: `1.23 s`, `4.5 ms`, `67 us`, `8 ns`."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
