"""Return to an earlier attempt or step of a run, and show the differences between attempts.

Files and conversation are restored together. The log and its blobs still contain the removed state.
No agent loop may run on the same `Run` meanwhile.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from cuagent.agent.compaction import OPENING
from cuagent.agent.run import Run
from cuagent.agent.seen import recall_seen
from cuagent.agent.stop import Stop
from cuagent.agent.tried import Tried
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
    """The messages and calls that `undo` removed from the conversation."""

    said: str
    """Text of the user's removed messages, which the user may edit and send again."""
    calls: tuple[str, ...]
    """Names of the tools that the removed messages called."""
    compaction: bool = False
    """True if `undo` removed a summary of the conversation instead of a step."""


def restore(run: Run, n: int) -> Tried:
    """Restore the files of attempt `n` in the work folder and tell the model; return the attempt.

    Other files do not change. Raises RecordError.
    """
    tried = _attempt(run, n)
    run.snapshot()
    try:
        _remove(run.work / KERNELS)
        _remove(run.work / MODULE)
        for name, content in tried.attempt.files:
            write_file(run.work, name, content.encode("utf-8"), replace_links=True)
    except OSError as error:
        raise RecordError(f"{run.work}: attempt {n} cannot be restored ({error})") from error
    run.snapshot()
    text = f"I have restored the files of attempt {n} in your work folder; continue from there."
    run.add(Message("user", text, data={"from": "user"}))
    run.stop = Stop.ANSWERED
    return tried


def undo(run: Run) -> Undone | None:
    """Undo the last step and its file changes; return the removed messages, or None without a step.

    If the conversation was summarized after the last step, undo the summary instead; files do not
    change then. Raises RecordError.
    """
    records = read_records(run.folder)
    path = branch_of(records)
    end = _before_last_step(path)
    if end is None:
        return _undo_compaction(run, records, path)
    run.snapshot()
    if (files := _files_before(records, path[end])) is not None:
        restore_snapshot(run.folder, files)
    removed = _go_back(run, path[:end], path[end:])
    recall_seen(run)
    calls = tuple(call.name for m in removed for call in m.tool_calls)
    run.snapshot()
    return Undone(_user_text(removed), calls)


def _undo_compaction(run: Run, records: Records, path: Records) -> Undone | None:
    """Restore the conversation as it was before its last summary; return None if it has no
    summary.
    """
    sums = [at for at, r in enumerate(path) if r.get("data", {}).get("from") == "compaction"]
    if not sums:
        return None
    at = records.index(path[sums[-1]])
    branch = max(n for n, r in enumerate(records[:at]) if r.get("why") == "compaction")
    removed = _go_back(run, branch_of(records[:branch]), path[sums[-1] :])
    recall_seen(run)
    return Undone(_user_text(removed), (), compaction=True)


def _go_back(run: Run, path: Records, removed: Records) -> list[Message]:
    """Reset the conversation to the message records `path`; return `removed` as messages."""
    run.branch([message_of(record) for record in path], path[-1]["id"], "undo")
    run.stop = Stop.ANSWERED  # an end of the run is undone as well
    return [message_of(record) for record in removed]


def _user_text(messages: list[Message]) -> str:
    return "\n".join(m.content for m in messages if m.data.get("from") == "user")


def _files_before(records: Records, message: Record) -> Any:
    """Return the last snapshot of the files that the log contains before `message`; None without
    one.

    The order of the log decides, not the branch of the conversation: a summary shortens the branch
    but does not change the files.
    """
    before = records[: records.index(message)]
    return next((r["files"] for r in reversed(before) if r["type"] == "checkpoint"), None)


def diff(run: Run, a: int, b: int | None = None) -> str:
    """Return the unified diff from attempt `a` to attempt `b`; to the work folder if `b` is None.

    Raises RecordError.
    """
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
    """Remove a folder with its content, a file, or a link (not its target). Raises OSError."""
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
    """Return the number of messages that remain if the last step is undone.

    The user's messages that led to the step are not among them. None if no step was made.
    """
    steps = [at for at, record in enumerate(path) if record["role"] == "assistant"]
    if not steps:
        return None
    end = steps[-1]
    while end > OPENING and path[end - 1]["role"] == "user" and not _stays(path[end - 1]):
        end -= 1
    return end


def _stays(record: dict[str, Any]) -> bool:
    """Return True if `undo` must not remove this user message: a summary, the ladder or the seed
    kernel.
    """
    return record.get("data", {}).get("from") in ("compaction", "ladder", "seed")
