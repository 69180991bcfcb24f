"""Replace a long conversation by its opening, the model's summary of it, and the recorded facts.

The system prompt with the skill, the task, and the judge's table of attempts stay word for word.
The files in the work folder do not change. The log is never rewritten: the short conversation is
another branch of it.
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
"""Share of the model's context length above which the conversation is compacted."""
OPENING = 2
"""Number of messages at the start of every run: the system prompt and the task."""
FEWEST = 6
"""Number of messages after the opening that a conversation must exceed to be compacted."""
BY_USER = "The user asks you to shorten the conversation."
SHORT = 600
"""Number of characters at each end of a tool result that the model sees when it summarizes.

Tool results are shortened only if the whole conversation no longer fits.
"""


def is_due(run: Run, model: Model) -> bool:
    """Return True if the conversation is long enough to be compacted now.

    False if the model's context length is unknown.
    """
    context = getattr(model, "context", None)
    return (
        context is not None
        and run.context_tokens > SHARE * context
        and len(run.messages) > OPENING + FEWEST
    )


def compact(run: Run, model: Model, focus: str = "") -> bool:
    """Replace the conversation by the model's summary; return False if the model gave none.

    `focus` is the user's text on the most important content. Raises ModelError and Interrupted.
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
    run.add(Message("user", _summary_message(run, text), data={"from": "compaction"}))
    run.seen.clear()
    run.notice(
        f"the conversation was summarized: about {before:,} tokens before, "
        f"{run.context_tokens:,} now; the log keeps all of it"
    )
    return True


def _summary(run: Run, model: Model, focus: str) -> Reply:
    """Ask the model for a summary and return its reply.

    The request extends the conversation unchanged, so the provider's prompt cache applies.
    """
    request = importlib.resources.files(__package__).joinpath("compaction.md")
    why = "The conversation is nearly as long as your context." if is_due(run, model) else BY_USER
    wanted = f"{why} {request.read_text(encoding='utf-8').strip()}"
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
    run.record_call(reply, model.name, sampling, seconds, purpose="compaction")
    return reply


def _shortened(message: Message) -> Message:
    if message.role != "tool" or len(message.content) <= 3 * SHORT:
        return message
    head, tail = message.content[:SHORT], message.content[-SHORT:]
    return replace(message, content=f"{head}\n... [left out] ...\n{tail}")


def _summary_message(run: Run, summary: str) -> str:
    parts = [
        "The conversation was replaced by your own summary of it. Read files again before you "
        "change them.",
        summary,
    ]
    if run.ladder is not None:
        parts.append(ladder_text(run.ladder))
    if run.tried:
        parts.append("Attempts so far, as judged:\n\n" + attempts_table(run))
    if run.todo:
        parts.append(
            "Your list:\n\n" + "\n".join(f"- [{i['state']}] {i['text']}" for i in run.todo)
        )
    return "\n\n".join(parts)


def _opening_id(run: Run) -> str | None:
    """Return the id of the last opening message in the log."""
    from cuagent.record import branch_of, read_records

    records = branch_of(read_records(run.folder, blobs=False))
    return str(records[OPENING - 1]["id"])
