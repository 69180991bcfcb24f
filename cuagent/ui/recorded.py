"""Convert the log of a recorded run back to events for the views.

Only visible events are converted. Pauses and streaming are not recorded, so a call's result follows
its title directly.

Invariant: reading never changes the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cuagent.events import (
    Event,
    Judged,
    LadderMeasured,
    Notice,
    RunEnded,
    RunStarted,
    Spent,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    UserSaid,
)
from cuagent.message import Message, ToolCall
from cuagent.record import RunFolder, judgement_of, judgements_of, ladder_of, message_of
from cuagent.timing import Effort

if TYPE_CHECKING:
    from cuagent.judgement import Judgement

Records = Sequence[Mapping[str, Any]]


def events_of(folder: RunFolder, records: Records, *, clocked: bool = False) -> Iterator[Event]:
    """Yield the events of a run in order, from its records.

    With `clocked` the totals are also given at the start of each step, for a view with a clock.
    """
    spent = _Spending(records[0]["time"] if records else 0.0)
    waiting: dict[str, ToolStarted] = {}
    running: dict[str, ToolStarted] = {}
    for record, before in zip(records, [*records[:1], *records], strict=False):
        match record["type"]:
            case "session":
                task = record["task"]
                yield RunStarted(
                    folder.id, folder.path, task["name"], task["device"], record["model"]
                )
            case "message" if record["role"] == "user" and _is_from_user(record):
                yield UserSaid(record["content"])
            case "call" if "purpose" in record:  # no step, but its cost counts
                spent.add(record, 0)
            case "call":
                if clocked:  # the step began after the record before: this one has its reply
                    yield spent.totals(before["time"])
                spent.add(record)
                yield StepStarted(spent.step)
            case "message" if record["role"] == "assistant":
                message = message_of(dict(record))
                yield from _words(message)
                waiting |= {call.id: _started(call) for call in message.tool_calls}
                yield spent.totals(record["time"])
            case "message" if record["role"] == "tool":
                id = record.get("tool_call_id", "")
                if id in waiting:
                    yield waiting[id]
                    running[id] = waiting.pop(id)
                if started := running.pop(id, None):
                    yield ToolFinished(
                        started.call_id,
                        started.name,
                        record["content"],
                        record.get("is_error", False),
                        0.0,
                        record.get("data", {}),
                    )
            case "judgement":
                # the first tool call without a result made this judgement
                if waiting and not running:
                    first = next(iter(waiting))
                    yield waiting[first]
                    running[first] = waiting.pop(first)
                yield Judged(record["attempt"], judgement_of(record))
            case "ladder":
                found = ladder_of([record])
                assert found is not None
                yield LadderMeasured(found, record.get("shown", True))
            case "notice" if "tool" not in record:  # that is a traceback, for the log only
                yield Notice(record["text"], record.get("level", "info"))
            case "resume":
                spent.resume(record["time"])
            case "end":
                spent.seconds_at_end = record.get("seconds")
                found = ladder_of(records)
                yield RunEnded(record["stop"], best_of(records), record["summary"], found)


def _words(message: Message) -> Iterator[TextDelta]:
    if message.reasoning:
        yield TextDelta(message.reasoning, "reasoning")
    if message.content:
        yield TextDelta(message.content + "\n")


def _started(call: ToolCall) -> ToolStarted:
    return ToolStarted(call.id, call.name, _summary(call.name, call.arguments), call.arguments)


def best_of(records: Records) -> Judgement | None:
    """Return the judgement of the best accepted attempt; None if no attempt is accepted.

    If there are judgements at record effort, only these are compared.
    """
    accepted = [j for j in judgements_of(records).values() if j.verdict.accepted]
    settled = [j for j in accepted if j.timing is not None and j.timing.effort is Effort.RECORD]
    return max(settled or accepted, key=lambda judgement: judgement.rank, default=None)


def _is_from_user(record: Mapping[str, Any]) -> bool:
    return record.get("data", {}).get("from") == "user"


def _summary(name: str, arguments: str) -> str:
    from cuagent.agent.tools import TOOLS

    tool = next((tool for tool in TOOLS if tool.name == name), None)
    return tool.summarize(arguments) if tool is not None else ""


class _Spending:
    """Totals of steps, tokens and cost over the `call` records read so far."""

    def __init__(self, started: float) -> None:
        self.step = self.tokens_in = self.tokens_out = 0
        self.cost: float | None = 0.0
        self.started = started
        self.seconds_at_end: float | None = None
        """Seconds of work until the run last ended; None if it did not."""

    def resume(self, now: float) -> None:
        """Leave out the time between the last end and the resumption at `now`."""
        if self.seconds_at_end is not None:
            self.started = now - self.seconds_at_end

    def add(self, call: Mapping[str, Any], steps: int = 1) -> None:
        self.step += steps
        usage = call["usage"]
        self.tokens_in += usage["input"] + usage["cache_read"] + usage["cache_write"]
        self.tokens_out += usage["output"]
        cost = call.get("cost")
        self.cost = None if self.cost is None or cost is None else self.cost + cost

    def totals(self, now: float) -> Spent:
        return Spent(self.step, now - self.started, self.tokens_in, self.tokens_out, self.cost)
