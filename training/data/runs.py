"""Convert run logs to training episodes.

The runs come from `cuagent optimize` or from rollouts. If the sampler returned token ids, the
episode has exactly those ids. For an API model only the text is known: it is rendered with the
policy's chat template. Such an episode has no log-probabilities, so only RFT can use it.
Not covered: which episodes to imitate (`filters.py`).
Invariant: the recording (`Message.sampled`, the token trace) decides which tokens were sampled,
never markers in rendered text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuagent.agent.tools import TOOLS
from cuagent.agent.tools.tool import ToolError, parse
from cuagent.message import Finish
from cuagent.models.model import ToolSpec
from cuagent.record import RecordError as LogError
from cuagent.record import RunFolder, end_record, list_runs, message_of, read_records
from cuagent.training.data.segments import Call, Episode, Kind, RecordError, Segment, check
from cuagent.training.data.tasks import source_digest
from cuagent.training.data.windows import Window, calls_in, unique_messages, windows_of
from cuagent.training.policy.chat import Chat

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Loaded:
    """Episodes that were loaded, and the number of runs that were skipped by reason."""

    episodes: tuple[Episode, ...]
    left_out: Mapping[str, int]


class UnusableRun(Exception):
    """Error: a run cannot become a training episode. The message is a short reason, by which such
    runs are counted."""


def load_runs(root: Path, chat: Chat) -> Loaded:
    """Load all runs under the folder `root` as episodes; skip runs that are unusable, damaged or of
    another version."""
    episodes, left_out = [], Counter[str]()
    for folder in list_runs(root):
        try:
            episodes.append(episode_of(folder, chat))
        except UnusableRun as why:
            left_out[str(why)] += 1
        except LogError as why:
            left_out[f"damaged: {why}"] += 1
        except (KeyError, TypeError, AttributeError) as why:
            left_out[f"{folder.log}: a log of another version ({why!r})"] += 1
    return Loaded(tuple(episodes), left_out)


def episode_of(folder: RunFolder, chat: Chat) -> Episode:
    """Convert the log of one run to an episode. Raises UnusableRun or record.RecordError."""
    records = read_records(folder)
    if not records or records[0]["type"] != "session":
        raise UnusableRun("no session")
    session = records[0]
    end = end_record(records)
    if end is None:
        raise UnusableRun("still running or killed")
    reward = end["rewards"]["milestone"]["score"]
    if reward is None:
        raise UnusableRun(f"no reward, {why_it_ended(end)}")
    tools = [ToolSpec(**t) for t in session["tools"]] or [t.spec for t in TOOLS]
    windows = windows_of(records)
    messages = unique_messages(windows)
    traces = [call for window in windows for call in calls_in(window, records)]
    if not traces:
        raise UnusableRun(f"the model never answered, {why_it_ended(end)}")
    try:
        if any(r.get("tokens") for r in traces):
            if session.get("tokenizer") not in (None, chat.fingerprint):
                raise UnusableRun("token ids of another tokenizer")
            segments = native_segments(folder.id, traces)
        else:
            segments = text_segments(windows, tools, chat)
        attempts = {r["n"]: r["digest"] for r in records if r["type"] == "attempt"}
        episode = Episode(
            id=folder.id,
            task=session["task"]["digest"],
            task_name=session["task"]["name"],
            segments=segments,
            reward=float(reward),
            stop=end["stop"],
            calls=calls_of(messages, tools),
            solution=attempts.get(end.get("attempt"), ""),
            policy=session["model"],
            tokenizer=chat.fingerprint,
            source=source_digest(session["task"]["source"], session["task"]["entry"]),
            figures=figures_of(records, traces, end),
        )
        check(episode)
    except RecordError as error:
        raise UnusableRun(str(error).partition(": ")[2] or str(error)) from error
    return episode


def why_it_ended(end: Record) -> str:
    """Return the stop reason of a run's `end` record, with the first 200 characters of its
    error."""
    error = " ".join((end["error"] or "").split())
    return f"{end['stop']}: {error[:200]}" if error else str(end["stop"])


def native_segments(run: str, traces: Sequence[Record]) -> tuple[Segment, ...]:
    """Return the token segments of a run whose model calls recorded their token ids.

    If a call's prompt begins with all earlier ids, the call continues the same context window. Any
    other prompt (after a compaction or an undone step) begins a new window.
    """
    found: list[Segment] = []
    stream: tuple[int, ...] = ()
    context = -1
    for number, trace in enumerate(traces, start=1):
        tokens = trace.get("tokens")
        if not tokens or not tokens["completion"]:
            raise RecordError(f"run {run}, call {number}: no token ids, but other calls have them")
        prompt, completion = tuple(tokens["prompt"]), tuple(tokens["completion"])
        if stream and prompt[: len(stream)] == stream:
            kind, new = Kind.OBSERVATION, prompt[len(stream) :]
        else:
            kind, new, context = Kind.PROMPT, prompt, context + 1
        if new:
            found.append(Segment(kind, new, context=context))
        logprobs = tuple(tokens["logprobs"]) or None
        found.append(Segment(Kind.ACTION, completion, logprobs, context))
        stream = prompt + completion
    return tuple(found)


def text_segments(
    windows: Sequence[Window], tools: Sequence[ToolSpec], chat: Chat
) -> tuple[Segment, ...]:
    """Return the segments of a run without token ids, rendered by the model's chat template."""
    return tuple(
        replace(segment, context=context)
        for context, window in enumerate(windows)
        for segment in chat.segments([message_of(r) for r in window], tools)
    )


def calls_of(messages: Window, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
    """Return every tool call that the model made, with `known` and `valid` set from the
    specifications `tools`."""
    schemas = {t.name: t.schema for t in tools}
    found: list[Call] = []
    for turn, record in enumerate(r for r in messages if r["sampled"]):
        for call in message_of(record).tool_calls:
            known = call.name in schemas
            found.append(
                Call(turn, call.name, call.arguments, known, known and arguments_fit(call, schemas))
            )
    return tuple(found)


def arguments_fit(call: Any, schemas: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if the call's arguments fit the schema of its tool."""
    try:
        parse(call.arguments, schemas[call.name])
    except ToolError:
        return False
    return True


def figures_of(
    records: Sequence[Record], traces: Sequence[Record], end: Record
) -> dict[str, float]:
    """Return counts, seconds and speedups of a run by name, for `Episode.figures`."""
    found = {
        "cut_turns": float(sum(r["finish"] == Finish.LENGTH for r in traces)),
        "attempts": float(sum(r["type"] == "attempt" for r in records)),
        "seconds": float(end["seconds"]),
    }
    judged = [r for r in records if r["type"] == "judgement" and r["attempt"] == end.get("attempt")]
    score = judged[-1]["score"] if judged else {}
    for name in ("over_eager", "over_compile"):
        if score.get(name) is not None:
            found[name] = float(score[name])
    return found
