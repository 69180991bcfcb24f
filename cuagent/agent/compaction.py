"""Compaction: the conversation becomes its opening, a summary by the model, and what is certain.

What is kept word for word: the system prompt with the skill, the task, and the table of attempts
as the judge has it; the work folder keeps the files. The log is never rewritten: the short
conversation is another branch of it.
"""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Sequence
from dataclasses import replace

from cuagent.agent.attended import attend
from cuagent.agent.run import Run
from cuagent.agent.wording import attempts_table, ladder_text
from cuagent.message import Message, Reply
from cuagent.models.model import ContextOverflow, Model

SHARE = 0.8
"""Of the model's context: at more than that a conversation is compacted before the next step."""
OPENING = 2
"""Messages that every run begins with: the system prompt and the task."""
FEWEST = 6
"""Messages; a conversation shorter than that has nothing to compact."""
SHORT = 600
"""Characters of each end of a tool result, where the whole is too long even to be summed up."""


def is_due(run: Run, model: Model) -> bool:
    """Whether the conversation nears the length of the model, where that is known."""
    context = getattr(model, "context", None)
    return (
        context is not None
        and run.context_tokens > SHARE * context
        and len(run.messages) > OPENING + FEWEST
    )


def compact(run: Run, model: Model, focus: str = "") -> bool:
    """Put a summary in the place of the conversation; False where there is none to be had.

    `focus` is what the user wants kept above all. Raises ModelError and Interrupted.
    """
    if len(run.messages) <= OPENING:
        return False
    before = run.context_tokens
    reply = _summary(run, model, focus)
    text = reply.message.content.strip()
    if not text or reply.message.tool_calls:
        run.notice("the model gave no summary: the conversation stays as it is", "warning")
        return False
    opening = run.messages[:OPENING]
    run.branch(opening, _opening_id(run), "compaction")
    run.add(Message("user", _told(run, text), data={"from": "compaction"}))
    run.seen.clear()
    run.notice(
        f"the conversation was summed up: about {before:,} tokens before, "
        f"{run.context_tokens:,} now; the log keeps all of it"
    )
    return True


def _summary(run: Run, model: Model, focus: str) -> Reply:
    """What the model says when asked to sum up. What it is sent begins as before: caches hold."""
    request = importlib.resources.files(__package__).joinpath("compaction.md")
    wanted = request.read_text(encoding="utf-8").strip()
    if focus:
        wanted += f"\n\nAbove all keep: {focus}"
    try:
        return _ask(run, model, [*run.messages, Message("user", wanted)])
    except ContextOverflow:
        return _ask(run, model, [*map(_shortened, run.messages), Message("user", wanted)])


def _ask(run: Run, model: Model, messages: Sequence[Message]) -> Reply:
    start = time.monotonic()
    reply = attend(lambda: model.query(messages, run.tools, lambda text, kind: None), run.cancelled)
    sampling = getattr(model, "sampling", {})
    seconds = time.monotonic() - start
    run.paid(reply, model.name, sampling, seconds, purpose="compaction")
    return reply


def _shortened(message: Message) -> Message:
    if message.role != "tool" or len(message.content) <= 3 * SHORT:
        return message
    head, tail = message.content[:SHORT], message.content[-SHORT:]
    return replace(message, content=f"{head}\n... [left out] ...\n{tail}")


def _told(run: Run, summary: str) -> str:
    parts = [
        "The conversation became too long and was replaced by your own summary of it. Files must "
        "be read again before they are changed.",
        summary,
    ]
    if run.ladder is not None:
        parts.append(ladder_text(run.ladder))
    if run.tried:
        parts.append("Attempts so far, as the judge has them:\n\n" + attempts_table(run))
    if run.todo:
        parts.append(
            "Your list:\n\n" + "\n".join(f"- [{i['state']}] {i['text']}" for i in run.todo)
        )
    return "\n\n".join(parts)


def _opening_id(run: Run) -> str | None:
    """Id of the last opening message in the log."""
    from cuagent.record import branch_of, read_records

    records = branch_of(read_records(run.folder, blobs=False))
    return str(records[OPENING - 1]["id"])
