"""What a run's log says was said: the context windows that led to where the run stands.

For: every reader of runs in training. A log is a graph: undo leaves messages behind, compaction
goes on from the opening with a summary. What was undone is no part of the episode; what stood
before a compaction is, as a context window of its own, for it led to the summary.
Not covered: tokens (`data.py`).
Invariant: every sampled message is in exactly one window, and the call that wrote a summary, whose
reply is no message of the log, is in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuagent.record import branch_of

Record = Mapping[str, Any]
Window = list[dict[str, Any]]


def windows_of(records: Sequence[dict[str, Any]]) -> list[Window]:
    """`message` records of each context window, oldest window first; each begins with the opening.

    A window in which nothing was sampled (the run ended right after a compaction) is left out.
    """
    path = branch_of(records)
    ids = {r["id"] for r in path}
    earlier: list[Window] = []
    for at in reversed(range(len(records))):
        record = records[at]
        if record["type"] == "branch" and record["why"] == "compaction":
            following = next((r for r in records[at:] if r["type"] == "message"), None)
            if following is None or following["id"] in ids:
                earlier = windows_of(records[:at])
                break
    return earlier + ([path] if any(r["sampled"] for r in path) else [])


def unique_messages(windows: Sequence[Window]) -> Window:
    """All messages of the windows in order, each once: the opening is not repeated."""
    once = {r["id"]: r for window in windows for r in window}
    return list(once.values())


def calls_in(window: Window, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The `call` records whose replies are messages of the window."""
    calls = {r["id"]: r for r in records if r["type"] == "call"}
    return [calls[r["call"]] for r in window if r["sampled"] and r.get("call") in calls]
