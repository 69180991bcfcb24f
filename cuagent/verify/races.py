"""Search an accepted CPU candidate for data races between its threads.

The sources are compiled again with a runtime that waits before some writes and reports a value that
another thread changes meanwhile (`build/races.h`). A separate process makes a few calls on the
task's own inputs. The check finds mistakes and no cheats, like compute-sanitizer on a GPU.

Not covered: a read that races with a write; compiled code outside the attempt's sources. The
verdict's own calls, with interrupted threads, find many of those (`worker/jitter.py`). Invariant:
only a reported race rejects an attempt. A build or a call that fails becomes a note.
"""

from __future__ import annotations

import time
from dataclasses import replace

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.build.races import can_watch, may_use_threads
from cuagent.kernels.compiler import CompilerMissing, toolchain
from cuagent.task import Device, TaskError
from cuagent.verdict import Reason, Verdict
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session, SessionEnded
from cuagent.worker.memory.arena import POISONS

DRAWS, CALLS = 2, 8
"""Number of input draws, and the largest number of calls on each draw.

The worker repeats short calls in addition (`worker/jitter.py`).
"""
ENOUGH_S = 0.25
"""Seconds of calls on one draw after which no further call is made."""
LIMIT_S = 10.0
"""Time limit in seconds of all calls; the runtime makes a call some 20 times slower."""
MARK = "cuagent: data race in "
"""Text that the race runtime prints before the name of a source with a race."""


def gated(referee: Referee, attempt: Attempt, verdict: Verdict) -> Verdict:
    """Return `verdict`, changed to a rejection if a data race was found in the accepted CPU
    attempt.

    If the check could not run, a note says so. Other verdicts are returned unchanged.
    """
    if referee.task.device is not Device.CPU or not verdict.accepted:
        return verdict
    if not may_use_threads(attempt) or not any(s.endswith(".cpp") for s in attempt.kernels):
        return verdict
    found, failure = _found(referee, attempt)
    if found:
        return replace(
            verdict,
            accepted=False,
            reason=Reason.MEMORY_FAULT,
            detail=f"data race in {found}: two threads write to the same memory at the same time; "
            "use a reduction, an atomic or a critical section",
        )
    if failure:
        note = f"data races were not looked for: {failure}"
        return replace(verdict, notes=(*verdict.notes, note))
    return verdict


def _found(referee: Referee, attempt: Attempt) -> tuple[str, str]:
    """Search for data races in repeated calls of the attempt.

    Returns the source that has a race, and the reason why the search could not finish; "" for none.
    """
    try:
        if not can_watch(toolchain("g++")):
            return "", "the compiler is not g++"
        built = build(attempt, referee.task.device, races=True)
    except CompilerMissing as error:
        return "", str(error)
    if not built.ok:
        return "", "a source does not compile with -fsanitize=thread"
    context, seeds = referee.context, Seeds()
    seed = seeds.draw()
    printed, failure = "", ""
    try:
        with referee.processes.waiting(attempt, seed) as session:
            session.import_model([library.path for library in built.libraries])
            session.time_limit_s = LIMIT_S
            for draw in range(DRAWS):
                referee.drawn(Weights.OWN, seed, Inputs.OWN, seeds.draw())
                if not draw:
                    session.load(context.weights)
                printed = _printed(referee, session)
                if MARK in printed:
                    break
    except SessionEnded as ended:
        printed, failure = ended.output, ended.detail
    except (ForkServerError, OracleLost, TaskError) as error:
        failure = str(error)
    finally:
        referee.make_room()
    _, _, rest = printed.partition(MARK)
    named = rest.split("\n", 1)[0].removeprefix("./").strip()
    source = next((s for s in attempt.kernels if s.endswith(f"/{named}")), "a kernel")
    return (source if rest else ""), failure


def _printed(referee: Referee, session: Session) -> str:
    """Call the candidate repeatedly on the current inputs; return all text that its process
    printed.

    Raises SessionEnded.
    """
    context, start = referee.context, time.monotonic()
    for _ in range(CALLS):
        context.lent.copy_slot(context.inputs)
        session.run(
            context.lent,
            context.outputs,
            [(0, 0)],
            deadline_s=LIMIT_S,
            poison=POISONS[0],
            lean=referee.large,
        )
        if MARK in session.output() or time.monotonic() - start > ENOUGH_S:
            break
    return session.output()
