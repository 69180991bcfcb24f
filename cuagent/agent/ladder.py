"""The run's ladder: measured before the first step, kept in the log, told to model and views.

What opens quickly is measured at once, since the first attempt needs eager and torch.compile
anyway; the rest when an attempt is judged for the record, so that no attempt waits for autotuning.
Not covered: what is measured and how (`cuagent.measure.ladder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.agent.wording import ladder_text
from cuagent.events import Phase
from cuagent.message import Message
from cuagent.models.model import Model

if TYPE_CHECKING:
    from cuagent.measure.ladder import Ladder

HURRIED = (Stop.TIME_LIMIT, Stop.DEVICE_LIMIT)
"""Ends after which nothing is measured that a result does not need."""


def start_at_ladder(run: Run, model: Model) -> None:
    """A hook: before the first step the ladder is measured, and the model learns of it."""
    if run.ladder is not None:
        return
    run.emit(Phase("timing the ladder: what is free, before any kernel"))
    run.add(Message("user", ladder_text(measure_ladder(run)), data={"from": "ladder"}))


def measure_ladder(run: Run, *, whole: bool = False) -> Ladder:
    """Measure the ladder, or what of it is missing. Raises JudgeLost and Interrupted."""
    return _keep(run, run.measured("ladder", lambda judge: judge.measure_ladder(whole=whole)))


def measure_remaining_rungs(run: Run) -> None:
    """Before a judgement of record: the rungs that were left for later, if the run has a ladder.

    It proposes rungs for that judgement, which has a table of its own; so no table is shown here.
    """
    if run.ladder is not None and run.ladder.later and run.stop not in HURRIED:
        run.emit(Phase(f"timing the rest of the ladder: {', '.join(run.ladder.later)}"))
        found = run.measured("ladder", lambda judge: judge.measure_ladder(whole=True))
        _keep(run, found, shown=False)


def confirm_rung(run: Run) -> Ladder:
    """What is free is to be the result: measure it afresh. Raises JudgeLost and Interrupted."""
    run.emit(Phase("timing what is free afresh"))
    return _keep(run, run.measured("ladder", lambda judge: judge.confirm_rung()))


def _keep(run: Run, found: Ladder, *, shown: bool = True) -> Ladder:
    if found != run.ladder:
        run.keep_ladder(found, shown=shown)
    return found
