"""Reconstruct the context windows of a run log that led to the run's final state.

A log is a tree of messages. Undo continues from an earlier message: the undone messages are not
part of the episode. Compaction continues from the opening with a summary: the messages before it
form a separate context window of the episode, because they led to the summary.
Not covered: tokens (`data.py`).
Invariant: every sampled message that was not undone is in exactly one window. The reply of the call
that wrote a summary is not a message of the log, so this call is in no window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuagent.record import branch_of

Record = Mapping[str, Any]
Window = list[dict[str, Any]]


def windows_of(records: Sequence[dict[str, Any]]) -> list[Window]:
    """Return the `message` records of each context window, oldest window first.

    Each window begins with the opening messages.
    A window without sampled messages (the run ended right after a compaction) is left out.
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
    """Return the messages of all windows in order, without repeating messages that several windows
    share."""
    once = {r["id"]: r for window in windows for r in window}
    return list(once.values())


def calls_in(window: Window, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of type `call` whose replies are messages of the window."""
    calls = {r["id"]: r for r in records if r["type"] == "call"}
    return [calls[r["call"]] for r in window if r["sampled"] and r.get("call") in calls]
