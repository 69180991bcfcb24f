"""Keep the episodes of each iteration in files, so that an interrupted collection or PPO run plays
none of them again.

    OUT/episodes/00003.jsonl             all episodes of iteration 3
    OUT/episodes/00003-1.incomplete      those that process 1 has played so far, after a line with
                                         the inputs that they depend on

Not covered: the format of an episode (`data/segments.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuagent.training import parallel
from cuagent.training.data.segments import VERSION, Episode, episode_from
from cuagent.training.files import read_lines, write_atomic

HELDOUT = "heldout"
"""Subfolder of a PPO run with the episodes of its evaluations, numbered by finished iterations."""


def episodes_file(out: Path, iteration: int) -> Path:
    """Return the path of the file with all episodes of an iteration."""
    return out / "episodes" / f"{iteration:05d}.jsonl"


def partial_file(out: Path, iteration: int, rank: int) -> Path:
    """Return the path of the file with the episodes that a process has played so far."""
    return out / "episodes" / f"{iteration:05d}-{rank}.incomplete"


def resume_partial(
    out: Path, iteration: int, inputs: Mapping[str, Any], names: Collection[str]
) -> dict[str, Episode]:
    """Return the episodes `names` of an interrupted iteration by episode id; those with other
    inputs are left out.

    The interrupted run may have had another number of processes. The file of this process is
    rewritten with the given inputs and these episodes, so that more episodes can be appended. All
    processes call it together.
    """
    own = partial_file(out, iteration, parallel.rank())
    own.parent.mkdir(parents=True, exist_ok=True)
    head = json.loads(json.dumps({"v": VERSION, **inputs}))  # tuples become lists, as in the file
    found: dict[str, Episode] = {}
    files = sorted(own.parent.glob(f"{iteration:05d}-*.incomplete"))
    for path in files:
        first, *rows = read_lines(path) or [None]
        if first == head:
            found |= {e.id: e for row in rows if (e := episode_from(row)).id in names}
    parallel.barrier()  # all processes have read before one writes
    lines = [head, *({"v": VERSION, **asdict(episode)} for episode in found.values())]
    write_atomic(own, "".join(json.dumps(line) + "\n" for line in lines))
    if parallel.rank() == 0:
        live = {partial_file(out, iteration, n) for n in range(parallel.size())}
        for path in set(files) - live:
            path.unlink()
    return found


def drop_later(out: Path, iteration: int) -> None:
    """Delete the episodes of all iterations after `iteration`: they were sampled from weights that
    this run does not reach. All processes call it together."""
    parallel.barrier()
    if parallel.rank() == 0:
        for path in (out / "episodes").glob("[0-9]" * 5 + "*"):
            if int(path.name[:5]) > iteration:
                path.unlink()
    parallel.barrier()
