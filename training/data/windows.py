"""Reconstruct the context windows of a run log that led to the run's final state.

Every reader of runs in training uses it. A log is a graph: undo leaves messages behind, and
compaction continues from the opening with a summary. Undone messages are not part of the episode.
Messages before a compaction are, as a separate context window, since they led to the summary.
Not covered: tokens (`data.py`).
Invariant: every sampled message is in exactly one window. The call that wrote a summary, whose
reply is not a message of the log, is in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuagent.record import branch_of

Record = Mapping[str, Any]
Window = list[dict[str, Any]]


def windows_of(records: Sequence[dict[str, Any]]) -> list[Window]:
    """Return the `message` records of each context window, oldest first; each begins with the
    opening.

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
    """Return all messages of the windows in order, without repeating the opening."""
    once = {r["id"]: r for window in windows for r in window}
    return list(once.values())


def calls_in(window: Window, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the `call` records whose replies are messages of the window."""
    calls = {r["id"]: r for r in records if r["type"] == "call"}
    return [calls[r["call"]] for r in window if r["sampled"] and r.get("call") in calls]
