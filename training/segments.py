"""What was sampled, token by token: segments, episodes and their JSONL file.

For: the one record from which every loss is computed. An episode is a list of segments that only
ever grows; the text that the agent reads is decoded from it, never the reverse, because
tokenize(decode(ids)) != ids in general. Not covered: how episodes come about (`rollout.py`,
`data.py`), tensors (`batch.py`).

Invariants: only actions are sampled, so only actions may carry log-probabilities; ids and
log-probabilities have equal length; which token counts in a loss follows from `Segment.kind` alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

VERSION = 1
JSON_TYPES = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}
"""What JSON may give for a field, by its annotation; fields of other kinds are checked apart."""


class RecordError(Exception):
    """A training record cannot be used. One line: which episode, which call, what to do."""


class Kind(StrEnum):
    """Who wrote a token."""

    PROMPT = "prompt"
    """System prompt, tools and task."""
    ACTION = "action"
    """Sampled by the policy, its end-of-turn token included where it sampled one."""
    OBSERVATION = "observation"
    """Written by a tool."""
    BOUNDARY = "boundary"
    """Put in by the chat template around turns (role markers, newlines)."""


@dataclass(frozen=True)
class Segment:
    """A piece of one context window. `context` counts the windows of an episode: compaction of the
    conversation starts a new one, and tokens attend only within their own."""

    kind: Kind
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    """Natural logarithms under the distribution sampled from; None where the sampler gave none."""
    context: int = 0


@dataclass(frozen=True)
class Call:
    """One tool call of an episode, as the filters and the monitor judge it."""

    turn: int
    name: str
    arguments: str
    """Byte for byte as sampled."""
    known: bool = True
    """The tool exists."""
    valid: bool = True
    """The arguments are JSON and fit the tool's schema."""


@dataclass(frozen=True)
class Episode:
    """One run of the agent on one task."""

    id: str
    task: str
    """Digest of the task; the held-out split goes by it."""
    task_name: str
    segments: tuple[Segment, ...]
    reward: float
    """Terminal, e.g. the milestone score in {-1, 1, 2, 3}."""
    stop: str
    """Why it ended: a `cuagent.agent` Stop value."""
    calls: tuple[Call, ...] = ()
    solution: str = ""
    """Digest of the attempt that was scored; empty where there was none."""
    policy: str = ""
    """Which policy sampled it."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer that the ids belong to."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measured facts for reports: ratios, seconds, verdict counts. Never an input of a loss."""

    @property
    def action_tokens(self) -> int:
        return sum(len(s.ids) for s in self.segments if s.kind is Kind.ACTION)

    @property
    def tokens(self) -> int:
        return sum(len(s.ids) for s in self.segments)

    @property
    def turns(self) -> int:
        return sum(s.kind is Kind.ACTION for s in self.segments)


def check(episode: Episode) -> None:
    """Raise RecordError unless the invariants above hold and there is something to learn from."""
    context, call = 0, 0
    for at, segment in enumerate(episode.segments):
        where = f"episode {episode.id}, segment {at}"
        if segment.context not in (context, context + 1):
            raise RecordError(f"{where}: context {segment.context} follows context {context}")
        if at == 0 and segment.context != 0:
            raise RecordError(f"{where}: the first context must be 0")
        if (at == 0 or segment.context > context) and segment.kind is Kind.ACTION:
            raise RecordError(f"{where}: a context begins with an action; it needs a prompt")
        context = segment.context
        if segment.kind is not Kind.ACTION:
            if segment.logprobs is not None:
                raise RecordError(f"{where}: a {segment.kind} has log-probabilities; only actions")
            continue
        call += 1
        if not segment.ids:
            raise RecordError(f"{where} (call {call}): an action without tokens")
        if segment.logprobs is not None and len(segment.logprobs) != len(segment.ids):
            raise RecordError(
                f"{where} (call {call}): {len(segment.ids)} ids but "
                f"{len(segment.logprobs)} log-probabilities"
            )
        # a run's log has words for what JSON has no number for
        if not all(is_number(p) and -math.inf < p <= 1e-6 for p in segment.logprobs or ()):
            raise RecordError(
                f"{where} (call {call}): a log-probability above 0, infinite or not a number"
            )
    if call == 0:
        raise RecordError(f"episode {episode.id}: no action token, nothing to learn from")


def require_logprobs(episodes: Iterable[Episode]) -> None:
    """PPO needs what the sampler knew. Raises RecordError that names the first bad call."""
    for episode in episodes:
        check(episode)
        actions = (s for s in episode.segments if s.kind is Kind.ACTION)
        for call, segment in enumerate(actions, start=1):
            if segment.logprobs is None:
                raise RecordError(
                    f"episode {episode.id}, call {call}: no log-probabilities of the sampler; PPO "
                    "cannot use it (text of an API model serves RFT: cuagent train rft)"
                )


def write_episodes(path: Path, episodes: Iterable[Episode]) -> int:
    """Append to a JSONL file, one line an episode; returns how many. Every record is checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("a", encoding="utf-8") as out:
        for episode in episodes:
            check(episode)
            out.write(json.dumps({"v": VERSION, **asdict(episode)}) + "\n")
            count += 1
    return count


def read_episodes(path: Path) -> Iterator[Episode]:
    """Read and check every line. Raises RecordError with file and line."""
    try:
        source = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; cuagent train collect makes one") from error
    with source:
        for number, line in enumerate(source, start=1):
            if not line.strip():
                continue
            try:
                episode = episode_from(json.loads(line))
                check(episode)
            except RecordError as error:
                raise RecordError(f"{path}:{number}: {error}") from error
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise RecordError(f"{path}:{number}: not an episode: {error!r}") from error
            yield episode


def episode_from(data: dict[str, Any]) -> Episode:
    """Of one line's object. Raises ValueError, KeyError or TypeError."""
    version = data.pop("v")
    if version != VERSION:
        raise ValueError(f"version {version}, this cuagent reads {VERSION}")
    segments = tuple(_segment(s) for s in data.pop("segments"))
    calls = tuple(Call(**check_types(Call, c)) for c in data.pop("calls"))
    if not math.isfinite(check_types(Episode, data)["reward"]):
        raise ValueError(f"its reward is {data['reward']!r}")
    if not all(is_number(value) for value in data.get("figures", {}).values()):
        raise ValueError(f"its figures are {data['figures']!r}")
    return Episode(segments=segments, calls=calls, **data)


def check_types(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """`data`, once its texts and numbers are what the fields of `kind` say. Raises ValueError."""
    for one in fields(kind):
        wanted = JSON_TYPES.get(str(one.type))
        if wanted and one.name in data and type(data[one.name]) not in wanted:
            raise ValueError(f"its {one.name} is {data[one.name]!r}")
    return data


def is_number(value: object) -> bool:
    return isinstance(value, float | int)


def _segment(data: dict[str, Any]) -> Segment:
    logprobs: Sequence[float] | None = data["logprobs"]
    if not all(type(i) is int and i >= 0 for i in data["ids"]):
        raise ValueError("a token id that is no whole number from 0 on")
    if logprobs is not None and not all(is_number(p) for p in logprobs):
        raise ValueError("a log-probability that is no number")
    return Segment(
        Kind(data["kind"]),
        tuple(data["ids"]),
        None if logprobs is None else tuple(logprobs),
        check_types(Segment, data)["context"],
    )
