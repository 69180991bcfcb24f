"""Going back: to an attempt, or a step; and what differs between attempts.

Files and conversation go back together, and nothing is lost: what is left behind stays in the log
and its blobs. For a run in which nobody works at the moment.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from cuagent.agent.compaction import OPENING
from cuagent.agent.run import Run, Tried
from cuagent.agent.stop import Stop
from cuagent.attempt import KERNELS, MODULE, Attempt, AttemptError, freeze
from cuagent.message import Message
from cuagent.record import (
    RecordError,
    branch_of,
    message_of,
    read_records,
    restore_snapshot,
    write_file,
)

Record = dict[str, Any]
Records = list[Record]


@dataclass(frozen=True)
class Undone:
    """What `undo` took back."""

    said: str
    """The user's own words in it, to be put before the user again."""
    calls: tuple[str, ...]
    """Names of the tools that had been called."""
    compaction: bool = False
    """Whether it was no step but the summing up of the conversation."""


def restore(run: Run, n: int) -> Tried:
    """Put the files of attempt `n` into the work folder; others stay. Raises RecordError."""
    tried = _attempt(run, n)
    run.snapshot()
    try:
        _remove(run.work / KERNELS)
        _remove(run.work / MODULE)
        for name, content in tried.attempt.files:
            write_file(run.work, name, content.encode("utf-8"), replace_links=True)
    except OSError as error:
        raise RecordError(f"{run.work}: attempt {n} cannot be put back ({error})") from error
    run.snapshot()
    text = f"I have put the files of attempt {n} back into your work folder; go on from there."
    run.add(Message("user", text, data={"from": "user"}))
    run.stop = Stop.ANSWERED
    return tried


def undo(run: Run) -> Undone | None:
    """Take the last step back, its files too; None where there is none.

    Where the conversation was summed up since the last step, that is taken back instead, and the
    files stay as they are. Raises RecordError.
    """
    records = read_records(run.folder)
    path = branch_of(records)
    kept = _before_last_step(path)
    if kept is None:
        return _undo_compaction(run, records, path)
    run.snapshot()
    if (files := _files_before(records, path[kept])) is not None:
        restore_snapshot(run.folder, files)
    gone = _go_back(run, path[:kept], path[kept:])
    calls = tuple(call.name for m in gone for call in m.tool_calls)
    run.snapshot()
    return Undone(_said(gone), calls)


def _undo_compaction(run: Run, records: Records, path: Records) -> Undone | None:
    """Go back to the conversation as it was before it was summed up last."""
    sums = [at for at, r in enumerate(path) if r.get("data", {}).get("from") == "compaction"]
    if not sums:
        return None
    at = records.index(path[sums[-1]])
    branch = max(n for n, r in enumerate(records[:at]) if r.get("why") == "compaction")
    gone = _go_back(run, branch_of(records[:branch]), path[sums[-1] :])
    return Undone(_said(gone), (), compaction=True)


def _go_back(run: Run, kept: Records, gone: Records) -> list[Message]:
    """Let the conversation be `kept` again; returns the messages that are gone."""
    run.branch([message_of(record) for record in kept], kept[-1]["id"], "undo")
    run.stop = Stop.ANSWERED  # an end in it is taken back as well
    return [message_of(record) for record in gone]


def _said(gone: list[Message]) -> str:
    return "\n".join(m.content for m in gone if m.data.get("from") == "user")


def _files_before(records: Records, message: Record) -> Any:
    """The files as they were when `message` was said; None where no record tells.

    The log's order decides, not the branch of the conversation: one that was summed up is short,
    and the files were not made anew with it.
    """
    before = records[: records.index(message)]
    return next((r["files"] for r in reversed(before) if r["type"] == "checkpoint"), None)


def diff(run: Run, a: int, b: int | None = None) -> str:
    """Unified diff from attempt `a` to attempt `b`, or to the work folder. Raises RecordError."""
    old = dict(_attempt(run, a).attempt.files)
    new = dict((_current(run) if b is None else _attempt(run, b).attempt).files)
    after = "work" if b is None else f"attempt {b}"
    pieces: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        pieces += unified_diff(
            old.get(name, "").splitlines(),
            new.get(name, "").splitlines(),
            f"attempt {a}/{name}",
            f"{after}/{name}",
            lineterm="",
        )
    return "\n".join(pieces)


def _attempt(run: Run, n: int) -> Tried:
    if not 1 <= n <= len(run.tried):
        have = f"there are {len(run.tried)}" if run.tried else "there is none yet"
        raise RecordError(f"no attempt {n}; {have}")
    return run.tried[n - 1]


def _remove(path: Path) -> None:
    """A folder with all in it, a file, or a link but not where it leads. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # follows no links
    else:
        path.unlink(missing_ok=True)


def _current(run: Run) -> Attempt:
    try:
        return freeze(run.work)
    except AttemptError as error:
        raise RecordError(str(error)) from error


def _before_last_step(path: list[dict[str, Any]]) -> int | None:
    """How many messages come before the last step and the words that led to it."""
    steps = [at for at, record in enumerate(path) if record["role"] == "assistant"]
    if not steps:
        return None
    kept = steps[-1]
    while kept > OPENING and path[kept - 1]["role"] == "user" and not _stays(path[kept - 1]):
        kept -= 1
    return kept


def _stays(record: dict[str, Any]) -> bool:
    """What led to no step: a summary, the ladder."""
    return record.get("data", {}).get("from") in ("compaction", "ladder")
