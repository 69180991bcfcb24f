"""Read the episodes that a training stage uses, and write runs in the formats of other trainers.

Not covered: which episodes are kept (`filters.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cuagent.record import RecordError as LogError
from cuagent.record import RunFolder, end_record, list_runs, read_records
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
    """Load the episodes of JSONL files, of folders of `cuagent train collect`, and of folders of
    runs; report skipped runs and reasons through `say`."""
    found: list[Episode] = []
    for source in sources:
        if not source.exists():
            raise RecordError(f"{source}: no such file or folder")
        played = [source] if source.is_file() else sorted(source.glob("episodes/*.jsonl"))
        if played:
            for file in played:
                found += read_episodes(file)
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


def export(
    runs: Path, form: Export, out: Path, policy: Path | None, say: Say = lambda text: None
) -> int:
    """Write the finished runs of a folder in the format `form`; return the number of rows or files
    written.

    Skipped runs and their reasons are reported through `say`. Parquet needs `policy`, whose
    tokenizer made the token ids.
    """
    found = list_runs(runs)
    if not found:
        raise RecordError(f"{runs}: no runs")
    if out.exists() and out.is_dir() != (form is Export.ATIF):
        raise RecordError(f"{out}: {form} needs a {'folder' if form is Export.ATIF else 'file'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if form is not Export.PARQUET:
        finished = finished_runs(found, say)
        return write_chat(finished, out) if form is Export.CHAT else write_atif(finished, out)
    if policy is None:
        raise RecordError("parquet holds token ids; add --policy for the tokenizer")
    with policy_errors(policy):
        chat = load_chat(policy)
    loaded = load_runs(runs, chat)
    for why, count in loaded.left_out.items():
        say(f"{runs}: {count} runs skipped: {why}")
    if not loaded.episodes:
        raise RecordError(f"{runs}: no run can be written")
    return write_parquet(loaded.episodes, out)


def finished_runs(runs: Sequence[RunFolder], say: Say) -> list[RunFolder]:
    """Return the runs that have ended; report the others through `say`. Raises RecordError if there
    is none."""
    found = []
    for run in runs:
        try:
            if end_record(read_records(run)) is None:
                say(f"{run.id} skipped: still running or killed")
                continue
        except LogError as why:
            say(f"{run.id} skipped: {why}")
            continue
        found.append(run)
    if not found:
        raise RecordError("no run has ended")
    return found


def digest_of_tasks(tasks: Sequence[Task]) -> str:
    return digest_of(task.digest.encode() for task in tasks)


def digest_of_episodes(episodes: Sequence[Episode]) -> str:
    return digest_of(
        repr(replace(episode, segments=())).encode()
        + b"".join(array("q", segment.ids).tobytes() for segment in episode.segments)
        for episode in episodes
    )
