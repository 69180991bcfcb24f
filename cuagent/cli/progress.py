"""Describe the progress of a run in a few lines, for a user who resumes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cuagent.agent import FINISHED, Stop
from cuagent.agent.conclude import summarize
from cuagent.ui.text import clip, clock, one_line

if TYPE_CHECKING:
    from cuagent.agent import Run
    from cuagent.events import Emit

LONGEST = 240
"""Largest number of characters of a quoted message."""
MARKUP = re.compile(r"\*\*|`|^#+\s|^\|[-:| ]+\|$", re.MULTILINE)
"""Pattern of Markdown marks to remove from a quoted line."""
WHY = {
    None: "it ended without a record",
    Stop.INTERRUPTED: "it was interrupted",
    Stop.ANSWERED: "it waits for you",
    Stop.MODEL_FAILED: "the model failed",
    Stop.JUDGE_FAILED: "the judge failed",
    Stop.CONTEXT_FULL: "the model's context was full",
}


def progress_lines(run: Run) -> Iterator[str]:
    """Yield lines about a run: its steps, why it stopped, its result, and what it was doing."""
    why = WHY.get(run.stop, f"it ended: {run.stop}")
    steps = f"{run.steps} step{'s' * (run.steps != 1)}"
    yield f"resumed after {steps} and {clock(run.seconds)} of work; {why}"
    yield summarize(run)
    said = [m for m in run.messages if m.role == "assistant" and m.content.strip()]
    if said:
        text = MARKUP.sub("", said[-1].content)
        yield f"last message of the model: {_short(text)}"
    for item in run.todo:
        if item["state"] == "doing":
            yield f"in progress: {_short(item['text'])}"


def recall(run: Run, view: Emit) -> None:
    """Add ladder and attempts of a resumed run to the table of a `Terminal`, without output.

    The table and the summary at the end then count them. Other views have no table.
    """
    from cuagent.ui.terminal import Terminal

    if isinstance(view, Terminal):
        latest = [run.settled.get(tried.n, tried) for tried in run.tried]
        view.recall(((tried.n, tried.judgement) for tried in latest), run.ladder)


def finished_text(stop: Stop | None, handle: str) -> str:
    """Return a line with the commands to see a finished run and, if it has a gain, to use the
    result."""
    use = "" if stop is Stop.NO_GAIN else f", use it with cuagent apply {handle}"
    return f"the run is finished ({stop}): see it with cuagent show {handle}{use}"


def is_finished(run: Run) -> bool:
    """Return True if the run has finished and needs a message to continue."""
    return run.stop in FINISHED and run.inbox.empty()


def _short(text: str) -> str:
    return clip(one_line(text), LONGEST)
