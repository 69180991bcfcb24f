"""Tool `submit`: judge the chosen attempt again at record effort, and end the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.ladder import measure_remaining_rungs
from cuagent.agent.run import Run
from cuagent.agent.stop import Stop
from cuagent.agent.tools.candidate import figures, judged
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.agent.tried import Tried
from cuagent.agent.wording import NAMES, judgement_lines
from cuagent.attempt import AttemptError, freeze
from cuagent.events import Phase
from cuagent.timing import Effort

UNVERIFIED = (
    "the files in the work folder were never verified, so the run would end without a kernel: call "
    "verify first, or submit once more to end it so"
)


def submit(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    chosen = _chosen(run, arguments.get("attempt"))
    message = arguments.get("message", "")
    if chosen is None:
        _refuse_unverified(run)
        run.stop = Stop.NO_GAIN
        text = "The run ends without a kernel: no attempt was accepted."
        return ToolResult(text, {"ended": True, "attempt": None, "message": message})
    if loss := run.rival_of(chosen):
        run.stop = Stop.SUBMITTED if chosen.judgement.is_faster else Stop.NO_GAIN
        sure = "surely" if chosen.judgement.slower_than else "very likely"
        text = (
            f"Attempt {chosen.n} is {sure} slower than {NAMES.get(loss, loss)}, so it is not timed "
            f"again. The run ends: {run.stop}."
        )
        return ToolResult(text, figures(chosen) | {"ended": True, "message": message})
    if not chosen.judgement.loses_to:
        measure_remaining_rungs(run, chosen.attempt)
    context.emit(Phase(f"judging attempt {chosen.n} again for the record"))
    settled = run.settle(chosen, judged(run, chosen.attempt, Effort.RECORD))
    data = figures(settled) | {"ended": settled.accepted, "message": message}
    lines = list(judgement_lines(settled, best=False))
    if not settled.accepted:
        lines.append(
            "The attempt was rejected when judged again, so the run continues: correct it, or "
            "submit another one."
        )
        return ToolResult("\n".join(lines), data, is_error=True)
    result = run.result
    assert result is not None
    run.stop = Stop.SUBMITTED if result.judgement.is_faster else Stop.NO_GAIN
    if result.n != settled.n:
        lines.append(f"Attempt {result.n} was better and remains the result.")
    lines.append(f"The run ends: {run.stop}.")
    return ToolResult("\n".join(lines), data)


def _refuse_unverified(run: Run) -> None:
    """Raise ToolError, once in a conversation, if the work folder has an attempt that was not
    judged."""
    if any(message.role == "tool" and UNVERIFIED in message.content for message in run.messages):
        return
    try:
        digest = freeze(run.work).digest
    except AttemptError:
        return  # there is none
    if digest not in {tried.attempt.digest for tried in run.tried}:
        raise ToolError(UNVERIFIED)


def _chosen(run: Run, number: int | None) -> Tried | None:
    """Return attempt `number`, by default the best; None if no attempt was accepted.

    Raises ToolError.
    """
    if number is None:
        return run.best
    accepted = [t.n for t in run.tried if t.accepted]
    if number not in accepted:
        have = f"accepted are {', '.join(map(str, accepted))}" if accepted else "none is accepted"
        raise ToolError(f"attempt {number} is not an accepted attempt; {have}")
    return run.tried[number - 1]


TOOL = Tool(
    "submit",
    schema(
        attempt={
            "type": "integer",
            "minimum": 1,
            "description": "Number of the attempt; the best accepted one by default.",
        },
        message={"type": "string", "description": "What you did, in a few sentences."},
    ),
    submit,
    shown="message",
)
