"""Which episodes rejection fine-tuning imitates, and how many each rule turned away.

For: the paper keeps positive outcomes and drops inefficient loops and invalid tool calls without
saying how; these are our rules, each with a count, so that a data set can be explained.
Not covered: value pretraining, which must see everything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from posixpath import normpath

from cuagent.training.segments import Call, Episode, Kind

PROTECTED = ("reference.py",)
"""Files that a policy must leave alone."""
CHANGES = re.compile(
    r"(>|\b(tee|sed\s+-i|mv|cp|rm|ln|truncate|chmod)\b|open\()[^|;&\n]*\breference\.py"
)
"""What a shell is told that would change one of them; copying it elsewhere is refused too."""
SUBMITTED = ("submitted", "no gain")
"""Stops that follow from a call of `submit`."""


@dataclass(frozen=True)
class Filters:
    above: float = 0.0
    """Rewards must exceed it."""
    submitted: bool = True
    cut_turns: int = 0
    """Turns that ended by their length limit, at most."""
    repeats: int = 2
    """The same call, or the same few in turn, at most so often in a row."""
    bad_calls: int = 0
    """Unknown tools or arguments that break a schema, at most."""
    tokens: int = 32768
    """Of a whole episode."""
    per_task: int | None = None
    """Easy tasks would otherwise fill the set."""


@dataclass(frozen=True)
class Funnel:
    """How many episodes came in, and how many each rule dropped, in order."""

    came: int
    dropped: tuple[tuple[str, int], ...]
    kept: int

    def lines(self) -> list[str]:
        rows = [("came in", self.came), *((f"- {name}", n) for name, n in self.dropped)]
        rows.append(("kept", self.kept))
        return [f"{name:<32}{n:>8}" for name, n in rows]


def filter_episodes(episodes: Iterable[Episode], filters: Filters) -> tuple[list[Episode], Funnel]:
    """The episodes to imitate, best first within a task where `per_task` limits it."""
    left = list(episodes)
    came = len(left)
    rules: list[tuple[str, Callable[[Episode], bool]]] = [
        (f"reward not above {filters.above:g}", lambda e: e.reward > filters.above),
        ("not ended by submit", lambda e: not filters.submitted or e.stop in SUBMITTED),
        (
            "a turn cut by length",
            lambda e: e.figures.get("cut_turns", 0) <= filters.cut_turns,
        ),
        ("the same calls over and over", lambda e: longest_repeat(e.calls) <= filters.repeats),
        (
            "unknown tool or broken arguments",
            lambda e: sum(not (c.known and c.valid) for c in e.calls) <= filters.bad_calls,
        ),
        ("a protected file written", lambda e: not any(touches_protected(c) for c in e.calls)),
        (f"over {filters.tokens} tokens", lambda e: e.tokens <= filters.tokens),
    ]
    dropped: list[tuple[str, int]] = []
    for name, good in rules:
        before = len(left)
        left = [e for e in left if good(e)]
        dropped.append((name, before - len(left)))
    before = len(left)
    left = distinct(left)
    dropped.append(("duplicates", before - len(left)))
    if filters.per_task is not None:
        before = len(left)
        left = best_of_each_task(left, filters.per_task)
        dropped.append((f"over {filters.per_task} of a task", before - len(left)))
    return left, Funnel(came, tuple(dropped), len(left))


def longest_repeat(calls: Sequence[Call], longest: int = 4) -> int:
    """How often the same calls, one or up to `longest` in turn, stand in a row, at most."""
    said = [(c.name, c.arguments) for c in calls]
    most = min(1, len(said))
    for period in range(1, longest + 1):
        same = 0  # calls in a row that are what stood a period before
        for at in range(period, len(said)):
            same = same + 1 if said[at] == said[at - period] else 0
            most = max(most, 1 + same // period)
    return most


def touches_protected(call: Call) -> bool:
    """Whether a file tool was asked to change what it must not, or a shell by a usual command."""
    try:
        arguments = json.loads(call.arguments, strict=False)
        if call.name == "bash":
            return CHANGES.search(str(arguments["command"])) is not None
        return call.name in ("write", "edit") and normpath(str(arguments["path"])) in PROTECTED
    except (ValueError, KeyError, TypeError):
        return False


def distinct(episodes: Sequence[Episode]) -> list[Episode]:
    """The first of those that sampled the same tokens for the same task."""
    seen: set[str] = set()
    kept = []
    for episode in episodes:
        actions = [s.ids for s in episode.segments if s.kind is Kind.ACTION]
        key = hashlib.sha256(repr((episode.task, actions)).encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            kept.append(episode)
    return kept


def best_of_each_task(episodes: Sequence[Episode], most: int) -> list[Episode]:
    """At most `most` of each task: the higher reward, then the shorter; the order is kept."""
    ranked = sorted(range(len(episodes)), key=lambda i: (-episodes[i].reward, episodes[i].tokens))
    taken: Counter[str] = Counter()
    chosen = set()
    for i in ranked:
        if taken[episodes[i].task] < most:
            taken[episodes[i].task] += 1
            chosen.add(i)
    return [e for i, e in enumerate(episodes) if i in chosen]
