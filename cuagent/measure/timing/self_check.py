"""Whether this machine can tell a difference in speed: the reference against itself.

Two attempts are made of one small module of our own: the same text (A/A), and the same with a known
share of its work done once more. What the timing says of them is known beforehand, so what it gets
wrong is the machine's noise or our fault. Not covered: the user's own task, which may be noisier.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.events import Emit, Phase, ignore
from cuagent.measure.system_load import BUSY
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.timing import MARGIN, Effort, Standing
from cuagent.verify.referee import Referee
from cuagent.worker.arms import EAGER

MODULE = """
import torch

class {name}(torch.nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        {more}
        return y * 2
"""
SAME = "pass"
MORE = "torch.tanh(x[:{rows}])"
"""So many of the rows computed again; of the two operators this is one."""
ROWS, COLUMNS = {Device.CPU: 2000, Device.CUDA: 32000}, 2048
"""On a GPU so many that the launch of the delay itself is small beside it."""
DELAYS = (0.03, 0.10)
TOLD = (0.01, 0.03, 0.10)
"""Differences of which a person is told whether the machine can tell them."""


@dataclass(frozen=True)
class Gate:
    """What the timing said of arms whose difference is known."""

    delay: float
    """0 is A/A; 0.03 is meant as 3 % more work."""
    ratios: tuple[float, ...] = ()
    called: tuple[str, ...] = ()
    half_widths: tuple[float, ...] = ()
    """Of the intervals, in logs."""
    seconds: tuple[float, ...] = ()
    contradictions: int = 0
    busy: float = 0.0

    @property
    def wrong(self) -> int:
        """Runs that called a difference where there is none, or none where there is one."""
        right = Standing.INCONCLUSIVE if self.delay == 0 else Standing.SLOWER
        return sum(word != right for word in self.called) + self.contradictions

    @property
    def resolution(self) -> float:
        """The smallest difference that a typical run would call: its half width and the margin."""
        return math.expm1(median(self.half_widths)) + MARGIN if self.half_widths else math.inf


@dataclass(frozen=True)
class Gates:
    """All of them, on one device."""

    device: str
    effort: Effort
    gates: tuple[Gate, ...] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """What this machine can tell apart, for a person."""
        seconds = median([s for gate in self.gates for s in gate.seconds])
        text = [f"{self.device}: {self.effort} timings, {seconds:.1f} s each"]
        for gate in self.gates:
            what = "the same against itself" if gate.delay == 0 else f"{gate.delay:.0%} more work"
            right = f"{len(gate.called) - gate.wrong} of {len(gate.called)} right"
            middle = f", median {median(gate.ratios):.4f}x" if gate.ratios else ""
            text.append(f"  {what:<24} {right}{middle}")
        busy = max(gate.busy for gate in self.gates)
        if busy > BUSY:
            text.append(f"  others took {busy:.0%} of the processors; in peace it can tell more")
        finest = max(gate.resolution for gate in self.gates)
        for share in TOLD:
            can = "can" if share + MARGIN / 10 >= finest else "cannot"
            text.append(f"  {can} tell {share:.0%} apart in one timing")
        if TOLD[-1] + MARGIN / 10 < finest < math.inf:
            text.append(f"  the least that one timing tells apart is a factor of {1 + finest:.2g}")
        return text


def gates(
    device: Device,
    *,
    effort: Effort = Effort.QUICK,
    runs: int = 5,
    delays: Sequence[float] = (0.0, *DELAYS),
    emit: Emit = ignore,
) -> Gates:
    """Time the known differences `runs` times each. Raises TaskError, ForkServerError."""
    with tempfile.TemporaryDirectory(prefix="cuagent-gates-") as place:
        path = Path(place) / "gate.py"
        path.write_text(MODULE.format(name="Model", more=SAME))
        task = load_task(path, inputs=f"f32[{ROWS[device]},{COLUMNS}]", device=device.value)
        with Referee(task) as referee, Timer(referee, (EAGER,)) as timer:
            done = []
            for delay in delays:
                what = f"{delay:.0%} more work" if delay else "the same against itself"
                emit(Phase(f"timing: {what}, {runs} times"))
                done.append(_gate(timer, device, delay, effort, runs))
            from cuagent.measure.roofline.ceilings import describe

            return Gates(describe(device), effort, tuple(done))


def extra_rows(delay: float, device: Device) -> int:
    """How many rows to compute again so that the module takes `delay` longer, a share.

    tanh and the product move equally much, so twice the share of one is the share of both.
    """
    return round(2 * delay * ROWS[device])


def _gate(timer: Timer, device: Device, delay: float, effort: Effort, runs: int) -> Gate:
    more = MORE.format(rows=extra_rows(delay, device)) if delay else SAME
    attempt = Attempt((("model_new.py", MODULE.format(name="ModelNew", more=more)),))
    built = build(attempt, device)
    ratios, called, widths, seconds, lies, busy = [], [], [], [], 0, 0.0
    for _ in range(runs):
        begun = time.perf_counter()
        timing = timer.time(attempt, built, effort)
        seconds.append(time.perf_counter() - begun)
        lies += bool(timing.refused)
        busy = max(busy, timing.busy)
        if EAGER in timing.ratios:
            ratio = timing.ratios[EAGER]
            ratios.append(ratio.value)
            called.append(ratio.standing.value)
            widths.append(math.log(ratio.high / ratio.low) / 2)
    return Gate(delay, tuple(ratios), tuple(called), tuple(widths), tuple(seconds), lies, busy)
