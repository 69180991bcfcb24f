"""Find out which differences in speed this machine can measure, with arms of known difference.

The check times a small reference against two kinds of attempts: the same text (A/A), and the same
text with a known share of its work done once more. The correct conclusions are known, so a wrong
one comes from noise of the machine or from a defect of cuagent.

Not covered: the user's own task, which may be noisier.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cuagent.arms import EAGER
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.events import Emit, Phase, ignore
from cuagent.measure.system_load import BUSY_SHARE
from cuagent.measure.timing.timer import Timer
from cuagent.task import Device, load_task
from cuagent.timing import MARGIN, Effort, Standing
from cuagent.verify.referee import Referee

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
"""Extra work of the slower attempts: one of the two operators computes `rows` of the rows again."""
ROWS, COLUMNS = {Device.CPU: 2000, Device.CUDA: 32000}, 2048
"""Shape of the input. On a GPU it is so large that the launch of the extra work is negligible."""
DELAYS = (0.03, 0.10)
"""Shares of extra work that are timed, in addition to 0 (A/A)."""
REPORTED_SHARES = (0.01, 0.03, 0.10)
"""Relative differences for which the report says if the machine can measure them."""


@dataclass(frozen=True)
class KnownDifference:
    """Results of timing several times an attempt that does a known share of extra work."""

    delay: float
    """Share of extra work: 0 is A/A, 0.03 is 3 % more work."""
    ratios: tuple[float, ...] = ()
    called: tuple[str, ...] = ()
    """Conclusion of each run: `faster`, `slower` or `inconclusive`."""
    half_widths: tuple[float, ...] = ()
    """Half the width of each run's interval, in natural logarithms of the ratio."""
    seconds: tuple[float, ...] = ()
    contradictions: int = 0
    busy: float = 0.0

    @property
    def wrong(self) -> int:
        """Number of runs with a wrong conclusion or a refused candidate."""
        right = Standing.INCONCLUSIVE if self.delay == 0 else Standing.SLOWER
        return sum(standing != right for standing in self.called) + self.contradictions

    @property
    def resolution(self) -> float:
        """Smallest relative difference that a typical run can show (0.02 is 2 %).

        It is the median half width of the intervals plus MARGIN; infinite without runs.
        """
        return math.expm1(median(self.half_widths)) + MARGIN if self.half_widths else math.inf


@dataclass(frozen=True)
class SelfCheck:
    """Results of the self-check on one device, one for each known difference."""

    device: str
    effort: Effort
    gates: tuple[KnownDifference, ...] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """Return the report for the user, as lines of text."""
        seconds = median([s for known in self.gates for s in known.seconds])
        text = [f"{self.device}: {self.effort} timings, {seconds:.1f} s each"]
        for known in self.gates:
            what = "the same against itself" if known.delay == 0 else f"{known.delay:.0%} more work"
            right = f"{len(known.called) - known.wrong} of {len(known.called)} right"
            middle = f", median {median(known.ratios):.4f}x" if known.ratios else ""
            text.append(f"  {what:<24} {right}{middle}")
        busy = max(known.busy for known in self.gates)
        if busy > BUSY_SHARE:
            text.append(
                f"  other processes used {busy:.0%} of the processors; "
                "an idle machine resolves more"
            )
        finest = max(known.resolution for known in self.gates)
        for share in REPORTED_SHARES:
            can = "can" if share + MARGIN / 10 >= finest else "cannot"
            text.append(f"  {can} resolve a difference of {share:.0%} in one timing")
        if REPORTED_SHARES[-1] + MARGIN / 10 < finest < math.inf:
            text.append(f"  the smallest factor that one timing resolves is {1 + finest:.2g}")
        return text


def self_check(
    device: Device,
    *,
    effort: Effort = Effort.QUICK,
    runs: int = 5,
    delays: Sequence[float] = (0.0, *DELAYS),
    emit: Emit = ignore,
) -> SelfCheck:
    """Time each known difference `runs` times and return the results.

    Raises TaskError or ForkServerError.
    """
    with tempfile.TemporaryDirectory(prefix="cuagent-gates-") as place:
        path = Path(place) / "gate.py"
        path.write_text(MODULE.format(name="Model", more=SAME))
        task = load_task(path, inputs=f"f32[{ROWS[device]},{COLUMNS}]", device=device.value)
        with Referee(task) as referee, Timer(referee, (EAGER,)) as timer:
            done = []
            for delay in delays:
                what = f"{delay:.0%} more work" if delay else "the same against itself"
                emit(Phase(f"timing: {what}, {runs} times"))
                done.append(_time_difference(timer, device, delay, effort, runs))
            from cuagent.measure.roofline.ceilings import describe

            return SelfCheck(describe(device), effort, tuple(done))


def extra_rows(delay: float, device: Device) -> int:
    """Return the number of rows to compute again so that the module takes longer by the share
    `delay`.

    tanh and the product move the same number of bytes, so twice the share of one operator is the
    share of both.
    """
    return round(2 * delay * ROWS[device])


def _time_difference(
    timer: Timer, device: Device, delay: float, effort: Effort, runs: int
) -> KnownDifference:
    more = MORE.format(rows=extra_rows(delay, device)) if delay else SAME
    attempt = Attempt((("model_new.py", MODULE.format(name="ModelNew", more=more)),))
    built = build(attempt, device)
    ratios, called, widths, seconds, refused, busy = [], [], [], [], 0, 0.0
    for _ in range(runs):
        begun = time.perf_counter()
        timing = timer.time(attempt, built, effort)
        seconds.append(time.perf_counter() - begun)
        refused += bool(timing.refused)
        busy = max(busy, timing.busy)
        if EAGER in timing.ratios:
            ratio = timing.ratios[EAGER]
            ratios.append(ratio.value)
            called.append(ratio.standing.value)
            widths.append(math.log(ratio.high / ratio.low) / 2)
    return KnownDifference(
        delay, tuple(ratios), tuple(called), tuple(widths), tuple(seconds), refused, busy
    )
