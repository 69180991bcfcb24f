"""Choose the episodes that rejection fine-tuning imitates, and count the episodes that each rule
drops.

The CUDA Agent paper keeps episodes with a positive outcome, and drops inefficient loops and invalid
tool calls without giving the rules. The rules here are cuagent's own. Their counts explain how a
data set was made.
Not covered: value pretraining, which uses all episodes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from posixpath import normpath

from cuagent.training.config import at_least
from cuagent.training.data.segments import Call, Episode, Kind

PROTECTED = ("reference.py",)
"""Files that a policy must not change."""
CHANGES = re.compile(
    r"(>|\b(tee|sed\s+-i|mv|cp|rm|ln|truncate|chmod)\b|open\()[^|;&\n]*\breference\.py"
)
"""Pattern of shell commands that would change reference.py. It also matches commands that copy the
file."""
SUBMITTED = ("submitted", "no gain")
"""Stop reasons that follow a call of `submit`."""


@dataclass(frozen=True)
class Filters:
    above: float = 0.0
    """Exclusive lower bound of the reward of an episode that is kept."""
    submitted: bool = True
    cut_turns: int = 0
    """Largest number of an episode's turns that the length limit may cut."""
    repeats: int = 2
    """Largest number of consecutive repetitions of one call, or of a cycle of up to four calls."""
    bad_calls: int = 0
    """Largest number of an episode's calls with an unknown tool or arguments that break the tool's
    schema."""
    tokens: int = 32768
    """Largest number of tokens of an episode that is kept."""
    per_task: int | None = None
    """Largest number of episodes kept for one task; None: no limit, and easy tasks may fill the
    set."""
    fastest: int | None = None
    """Number of episodes kept for each task: those with the largest lower limit of the speedup. RFT
    then learns speed too, so its comparison with PPO is fair. None keeps all."""

    def __post_init__(self) -> None:
        at_least(0, self, "cut_turns", "bad_calls")
        at_least(1, self, "repeats", "tokens", "per_task", "fastest")


@dataclass(frozen=True)
class Funnel:
    """Counts of one filtering: `came` input episodes, episodes `dropped` by each rule in order,
    `kept` episodes."""

    came: int
    dropped: tuple[tuple[str, int], ...]
    kept: int

    def lines(self) -> list[str]:
        rows = [("input", self.came), *((f"- {name}", n) for name, n in self.dropped)]
        rows.append(("kept", self.kept))
        width = max(len(name) for name, _ in rows)
        return [f"{name:<{width}}{n:>8}" for name, n in rows]


def filter_episodes(
    episodes: Iterable[Episode], filters: Filters, positions: int | None = None
) -> tuple[list[Episode], Funnel]:
    """Return (episodes that pass all filters, counts of the dropped ones by rule).

    `positions`: the policy's context length in tokens; None: not checked.
    """
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
    if positions is not None:
        rules.append((f"over the {positions} positions", lambda e: e.longest_window <= positions))
    dropped: list[tuple[str, int]] = []
    for name, good in rules:
        before = len(left)
        left = [e for e in left if good(e)]
        dropped.append((name, before - len(left)))
    before = len(left)
    left = distinct(left)
    dropped.append(("duplicates", before - len(left)))
    if filters.fastest is not None:
        before = len(left)
        left = best_of_each_task(left, filters.fastest, key=lambda e: (-gain(e), -e.reward))
        dropped.append((f"not of the {filters.fastest} fastest", before - len(left)))
    if filters.per_task is not None:
        before = len(left)
        left = best_of_each_task(left, filters.per_task)
        dropped.append((f"over {filters.per_task} of a task", before - len(left)))
    return left, Funnel(came, tuple(dropped), len(left))


def longest_repeat(calls: Sequence[Call], longest: int = 4) -> int:
    """Return the largest number of consecutive repetitions of a cycle of 1 to `longest` calls.

    1 means that nothing is repeated.
    """
    requests = [(c.name, c.arguments) for c in calls]
    most = min(1, len(requests))
    for period in range(1, longest + 1):
        same = 0  # consecutive calls that equal the call one period earlier
        for at in range(period, len(requests)):
            same = same + 1 if requests[at] == requests[at - period] else 0
            most = max(most, 1 + same // period)
    return most


def touches_protected(call: Call) -> bool:
    """Return True if a file tool or a common shell command changes a protected file."""
    try:
        arguments = json.loads(call.arguments, strict=False)
        if call.name == "bash":
            return CHANGES.search(str(arguments["command"])) is not None
        return call.name in ("write", "edit") and normpath(str(arguments["path"])) in PROTECTED
    except (ValueError, KeyError, TypeError):
        return False


def distinct(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes without duplicates. Episodes with the same task and the same sampled
    tokens are duplicates; the first one is kept."""
    seen: set[str] = set()
    kept = []
    for episode in episodes:
        actions = [s.ids for s in episode.segments if s.kind is Kind.ACTION]
        key = hashlib.sha256(repr((episode.task, actions)).encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            kept.append(episode)
    return kept


def gain(episode: Episode) -> float:
    """Return the lower limit of the speedup over torch.compile, or over eager if only that is
    known; 0 if nothing was timed."""
    figures = episode.figures
    return figures.get("over_compile", figures.get("over_eager", 0.0))


def best_of_each_task(
    episodes: Sequence[Episode],
    most: int,
    key: Callable[[Episode], tuple[float, ...]] = lambda e: (-e.reward,),
) -> list[Episode]:
    """Return at most `most` episodes of each task: those with the lowest `key`, then the fewest
    tokens.

    The default key prefers high rewards. The order is preserved.
    """
    ranked = sorted(range(len(episodes)), key=lambda i: (*key(episodes[i]), episodes[i].tokens))
    taken: Counter[str] = Counter()
    chosen = set()
    for i in ranked:
        if taken[episodes[i].task] < most:
            taken[episodes[i].task] += 1
            chosen.add(i)
    return [e for i, e in enumerate(episodes) if i in chosen]
