"""Measure the run's ladder before the first step, log it, and show it to the model and the views.

The rungs that open quickly, eager and torch.compile among them, are measured first. The others are
measured when an attempt is judged for the record, so no attempt waits for autotuning. Not covered:
the measurement itself (`cuagent.measure.ladder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.agent.wording import ladder_text
from cuagent.arms import EAGER
from cuagent.durations import Durations, Stage
from cuagent.events import Emit, Phase
from cuagent.message import Message
from cuagent.models.model import Model
from cuagent.task import Device

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.measure.rungs import Ladder

HURRIED = (Stop.TIME_LIMIT, Stop.DEVICE_LIMIT)
"""Stops after which only the measurements for the result are made, because time is up."""
FP32_ERROR = 2e-6
"""Relative error against fp64 above which a reference's products must have used TF32.

Sums of 8,192 products in float32 by cuBLAS have 1.6e-6, convolutions in TF32 before a norm 5e-6 or
more (H100, H200).
"""
ROUNDING_ERROR = 1e-8
"""Relative error below which a reference's error does not tell in which precision it multiplies.

Rounding results of float32 arithmetic to float32 alone gives more, so the outputs must be nearly
constant: those of MobileNetV1 as it is initialised have 2.3e-10, and cuDNN computed it in TF32.
"""
WAIT_S = {Device.CPU: 5.0, Device.CUDA: 15.0}
"""Longest wait in seconds, at the end of a run, for rungs that still compile in the background.

It is longer on a GPU, where an autotuned rung is often the best for products and convolutions.
"""


def start_at_ladder(run: Run, model: Model) -> None:
    """Measure the ladder before the first step and show it to the model.

    This function is a hook.
    """
    if run.ladder is not None:
        return
    prepare(model, run.emit, run.durations)
    run.emit(Phase("timing the ladder: the options that need no kernel"))
    ladder = measure_ladder(run)
    run.add(Message("user", ladder_text(ladder), data=bounds_of(ladder)))


def prepare(model: Model, emit: Emit, durations: Durations) -> None:
    """Let a model that can prepare itself do so, while torch.compile works; a second call is
    quick."""
    if (prepared := getattr(model, "prepare", None)) is not None:
        emit(Phase(f"preparing {model.name} while torch.compile works"))
        with durations.of(Stage.GENERATION):
            prepared()


def bounds_of(ladder: Ladder) -> dict[str, Any]:
    """Return data for the ladder message: the floor and the best rung's seconds.

    From these the expert computes an upper bound of a kernel's speedup. `in_tf32` is True if the
    reference's error is that of products in TF32, `is_exact` if it is that of float32 arithmetic.
    """
    best, eager = ladder.best, ladder.rung(EAGER)
    figures: dict[str, Any] = {"floor": ladder.certain_floor}
    if best is not None:
        figures |= {"rung": best.name, "rung_seconds": best.seconds}
    if eager is not None and eager.error is not None:
        figures["in_tf32"] = eager.error > FP32_ERROR
        figures["is_exact"] = ROUNDING_ERROR <= eager.error <= FP32_ERROR
    return {"from": "ladder", "bounds": figures}


def measure_ladder(run: Run, *, whole: bool = False) -> Ladder:
    """Measure the rungs that open quickly, with `whole` also the slow ones; return and log the
    ladder.

    Raises JudgeLost and Interrupted.
    """
    return _record(run, run.measured("ladder", lambda judge: judge.measure_ladder(whole=whole)))


def measure_remaining_rungs(run: Run, attempt: Attempt | None = None) -> None:
    """Measure the rungs that `measure_ladder` postponed, if the run has a ladder.

    Called before a judgement at record effort, which shows a table; so no table is shown here. The
    `attempt` of that judgement is verified first, while the rungs compile in the background.
    """
    if run.ladder is not None and run.ladder.later and run.stop not in HURRIED:
        if attempt is not None:
            run.measured("verify", lambda judge: judge.verify_ahead(attempt))
        run.emit(Phase(f"timing the rest of the ladder: {', '.join(run.ladder.later)}"))
        wait_s = WAIT_S[run.task.device]
        ladder = run.measured(
            "ladder", lambda judge: judge.measure_ladder(whole=True, wait_s=wait_s)
        )
        _record(run, ladder, shown=False)
        if ladder.later:
            late = ", ".join(ladder.later)
            run.notice(f"{late}: not compiled in time, so not compared; cuagent baseline times all")


def confirm_rung(run: Run) -> Ladder:
    """Time the best rung again at record effort; return the ladder.

    Raises JudgeLost and Interrupted.
    """
    run.emit(Phase("timing the best free option again"))
    return _record(run, run.measured("ladder", lambda judge: judge.confirm_rung()))


def _record(run: Run, ladder: Ladder, *, shown: bool = True) -> Ladder:
    if ladder != run.ladder:
        run.record_ladder(ladder, shown=shown)
    return ladder
