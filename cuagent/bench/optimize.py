"""Run the agent on one benchmark problem whose judge is open; return the problem's status.

The figures of the result (`figures.py`) and what the run has spent are added to the record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.agent import HOOKS, TOOLS, Budget, Run, Stop, run_agent, start_at_ladder, start_run
from cuagent.agent.conclude import summarize
from cuagent.bench.certificates import Certification
from cuagent.bench.figures import arithmetic_seconds, figures
from cuagent.bench.order import Order, Rules
from cuagent.bench.record_form import FREE, KERNEL
from cuagent.bench.results import Record
from cuagent.events import Emit, Judged, LadderMeasured, Notice, Phase
from cuagent.judge import LocalJudge
from cuagent.judgement import Result, result_of
from cuagent.measure.ladder import NO_ROOM
from cuagent.sandbox import Tier, probe
from cuagent.task import Task

if TYPE_CHECKING:
    from cuagent.agent.tools import Tool
    from cuagent.models.model import Model

Report = Callable[[dict[str, Any]], None]
"""Function that receives progress: {"phase": text} or {"attempts": number, "best": ratio over
torch.compile}."""
SUBMIT = "submit"
OUT_OF_MEMORY = ("OutOfMemoryError", "of device memory, all that is free")
"""Words in a verdict's detail which mean that an attempt could not allocate GPU memory."""


class Interrupted(Exception):
    """Error: the benchmark was interrupted, so the problem has no result."""


@dataclass(frozen=True)
class Status:
    """Status of a finished problem, as in its record."""

    name: str
    """Outcome of a problem: `kernel`, `free option`, `no gain`, `no kernel`, `not certifiable`
    or `failed`. `no gain`: an attempt was accepted, but nothing is surely faster than eager."""
    reason: str


def optimize(
    order: Order,
    task: Task,
    judge: LocalJudge,
    model: Model,
    emit: Emit,
    found: Record,
    certification: Certification,
    ends: float,
) -> Status:
    """Run the agent on the problem and return the status; add the figures to `found`.

    No step begins after `ends`, a time of the monotonic clock in seconds. Raises Interrupted.
    """
    settings, left_s = order.settings, max(0.0, ends - time.monotonic())
    tools = _tools()
    run = start_run(
        task,
        judge,
        model=model.name,
        tools=[tool.spec for tool in tools],
        budget=Budget(settings.max_steps, settings.max_cost, left_s),
        root=Path(order.runs),
        emit=emit,
        config=settings.to_json(),
    )
    run.settles_rung = False
    run.kernels_only = settings.rules is Rules.KERNELS_ONLY
    with run.log:
        stop = run_agent(run, model, tools, (start_at_ladder, *HOOKS), emit)
    if stop is Stop.INTERRUPTED:
        raise Interrupted
    judgement = run.result.judgement if run.result else None
    # The timing of the result has measured the device's rates, so nothing is measured here.
    fork_server, lock = judge.referee.fork_server, judge.device_lock
    arithmetic_s = arithmetic_seconds(task, fork_server, lock) if judgement else None
    given = result_of(judgement, run.ladder, kernels_only=run.kernels_only)
    found |= figures(judgement, run.ladder, certification, arithmetic_s, given)
    found |= _effort_of(run, stop)
    if not order.alone and (why := _lacked_memory(run)):
        return Status("failed", f"out of memory beside other problems: {why}")
    return _status(run, stop, given)


def _effort_of(run: Run, stop: Stop) -> Record:
    return {
        "stop": str(stop),
        "run": run.folder.id,
        "attempts": len(run.tried),
        "accepted": sum(tried.accepted for tried in run.tried),
        "lax_passed": sum(_passed_lax(tried.judgement.verdict) for tried in run.tried),
        "steps": run.steps,
        "cost_usd": run.cost,
        "notes": _messages(run),
    }


def _passed_lax(verdict: Any) -> bool:
    return verdict.lax is not None and verdict.lax.passed


def _messages(run: Run) -> list[str]:
    """Return the message of the model's last submission, as a list of one text; [] if there is
    none."""
    calls = [call for message in run.messages for call in message.tool_calls]
    texts = []
    for call in calls:
        if call.name == SUBMIT:
            try:
                texts.append(str(json.loads(call.arguments).get("message", "")))
            except (ValueError, AttributeError):
                continue
    return [text for text in texts if text][-1:]


def _status(run: Run, stop: Stop, given: Result) -> Status:
    best = run.result.judgement if run.result is not None else None
    if best is not None and given is Result.KERNEL:
        return Status(KERNEL, str(best.verdict.reason))
    if best is None and stop in (Stop.MODEL_FAILED, Stop.JUDGE_FAILED):
        return Status("failed", f"{stop}: {run.error}")
    if given is Result.RUNG:
        return Status(FREE, summarize(run))
    if best is not None:
        return Status("no gain", summarize(run))
    if run.tried:
        verdict = run.tried[-1].judgement.verdict
        return Status("no kernel", f"{len(run.tried)} rejected, the last: {verdict.reason}")
    return Status("no kernel", (_messages(run) or [str(stop)])[0])


def _lacked_memory(run: Run) -> str:
    """Return what could not be run for lack of GPU memory: the attempt, or rungs of the ladder; ""
    if nothing.

    Memory that other problems use is not the fault of the attempt, so the problem can run again
    alone.
    """
    if run.judge.task.device != "cuda":
        return ""
    notes = run.ladder.notes if run.ladder is not None else ()
    found = [note for note in notes if NO_ROOM in note]
    if run.result is None:
        details = [tried.judgement.verdict.detail for tried in run.tried]
        found += [text for text in details if any(words in text for words in OUT_OF_MEMORY)]
    return found[-1] if found else ""


def _tools() -> Sequence[Tool]:
    """Return the agent's tools. Without a sandbox the shell tools are left out, because no user can
    approve commands."""
    confined = probe() is not Tier.NONE
    return [tool for tool in TOOLS if confined or not tool.name.startswith("bash")]


def reporter(report: Report) -> Emit:
    attempts = 0

    def emit(event: Any) -> None:
        nonlocal attempts
        match event:
            case Phase(text=text):
                report({"phase": text})
            case LadderMeasured(ladder=ladder):
                best = ladder.best
                report({"phase": f"best rung: {best.name if best else 'none'}"})
            case Judged(attempt=number, judgement=judgement):
                attempts = max(attempts, number)
                ratios = judgement.timing.ratios if judgement.timing else {}
                shown = ratios.get("compile")
                report({"attempts": attempts, "ratio": shown.value if shown else None})
            case Notice(text=text, level="error"):
                report({"phase": text})

    return emit
