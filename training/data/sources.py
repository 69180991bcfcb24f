"""Read the episodes that a training stage uses, and write runs in the formats of other trainers.

Not covered: which episodes are kept (`filters.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cuagent.record import list_runs
from cuagent.task import Task
from cuagent.training.data.export import write_atif, write_chat, write_parquet
from cuagent.training.data.runs import load_runs
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.files import digest_of
from cuagent.training.policy.chat import Chat, load_chat
from cuagent.training.policy.folder import (
    policy_errors,
)
from cuagent.training.settings import Export

Say = Callable[[str], None]


def episodes_of(sources: Sequence[Path], chat: Chat, say: Say) -> list[Episode]:
    """Load the episodes of JSONL files and of folders of runs; report skipped runs and reasons
    through `say`."""
    found: list[Episode] = []
    for source in sources:
        if not source.exists():
            raise RecordError(f"{source}: no such file or folder")
        if source.is_file():
            found += read_episodes(source)
            continue
        loaded = load_runs(source, chat)
        for why, count in loaded.left_out.items():
            say(f"{source}: {count} runs skipped: {why}")
        found += loaded.episodes
    foreign = next((e.id for e in found if e.tokenizer != chat.fingerprint), None)
    if foreign is not None:
        raise RecordError(f"episode {foreign} has the ids of another tokenizer, not the policy's")
    if not found:
        raise RecordError(f"no episodes in {', '.join(map(str, sources))}")
    return found


def export(runs: Path, form: Export, out: Path, policy: Path | None) -> int:
    """Write runs in the format `form`; return the number of rows or files written.

    Parquet needs `policy`, whose tokenizer made the token ids.
    """
    found = list_runs(runs)
    if not found:
        raise RecordError(f"{runs}: no runs")
    if out.exists() and out.is_dir() != (form is Export.ATIF):
        raise RecordError(f"{out}: {form} needs a {'folder' if form is Export.ATIF else 'file'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if form is Export.CHAT:
        return write_chat(found, out)
    if form is Export.ATIF:
        return write_atif(found, out)
    if policy is None:
        raise RecordError("parquet holds token ids; add --policy for the tokenizer")
    with policy_errors(policy):
        chat = load_chat(policy)
    return write_parquet(load_runs(runs, chat).episodes, out)


def digest_of_tasks(tasks: Sequence[Task]) -> str:
    return digest_of(task.digest.encode() for task in tasks)


def digest_of_episodes(episodes: Sequence[Episode]) -> str:
    return digest_of(
        repr(replace(episode, segments=())).encode()
        + b"".join(array("q", segment.ids).tobytes() for segment in episode.segments)
        for episode in episodes
    )
