"""Define the training record: token segments, episodes and their JSONL file.

Every loss is computed from this record. An episode is an append-only list of segments. The agent's
text is decoded from it, never the reverse, because tokenize(decode(ids)) != ids in general. Not
covered: how episodes are created (`rollout.py`, `data.py`), tensors (`batch.py`).

Invariants: only actions are sampled, so only actions may carry log-probabilities; ids and
log-probabilities have equal length; `Segment.kind` alone decides which tokens count in a loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

VERSION = 2
JSON_TYPES = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}
"""Accepted Python types of a JSON value, by the annotation of the dataclass field. Fields with
other annotations are not checked."""


class RecordError(Exception):
    """Error: a training record cannot be used. The message is one line: the episode, the model
    call, the remedy."""


class Kind(StrEnum):
    """Kind of a segment, by the writer of its tokens."""

    PROMPT = "prompt"
    """Tokens of the system prompt, the tools and the task."""
    ACTION = "action"
    """Tokens that the policy sampled, including its end-of-turn token if it sampled one."""
    OBSERVATION = "observation"
    """Tokens of a tool's output."""
    BOUNDARY = "boundary"
    """Tokens that the chat template inserts around turns (role markers, newlines)."""


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one kind in one context window.

    `context` is the index of the window in its episode. Compaction of the conversation starts a new
    window, and tokens attend only to tokens of their own window.
    """

    kind: Kind
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each id under the sampling distribution; None if the sampler
    returned none."""
    context: int = 0


@dataclass(frozen=True)
class Call:
    """A tool call of an episode, with the facts that filters and monitor need."""

    turn: int
    name: str
    arguments: str
    """Arguments as JSON text, byte for byte as sampled."""
    known: bool = True
    """True if the called tool exists."""
    valid: bool = True
    """True if the arguments are JSON and fit the tool's schema."""


@dataclass(frozen=True)
class Episode:
    """Training record of one run of the agent on one task: tokens, reward, tool calls."""

    id: str
    task: str
    """Digest of the task."""
    task_name: str
    segments: tuple[Segment, ...]
    reward: float
    """Terminal reward, e.g. the milestone score in {-1, 1, 2, 3}."""
    stop: str
    """Reason why the episode ended: a value of `cuagent.agent.Stop`."""
    calls: tuple[Call, ...] = ()
    solution: str = ""
    """Digest of the scored attempt; empty if there was none."""
    policy: str = ""
    """Name of the policy that sampled the episode."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer of the token ids."""
    source: str = ""
    """Digest of the task's source text and class (`tasks.source_digest`), which determines the
    held-out split; empty: `task` determines it."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measured facts for reports: ratios, seconds, verdict counts. Never an input of a loss."""

    @property
    def action_tokens(self) -> int:
        return sum(len(s.ids) for s in self.segments if s.kind is Kind.ACTION)

    @property
    def tokens(self) -> int:
        return sum(len(s.ids) for s in self.segments)

    @property
    def longest_window(self) -> int:
        """Number of tokens of the longest context window."""
        lengths: dict[int, int] = {}
        for s in self.segments:
            lengths[s.context] = lengths.get(s.context, 0) + len(s.ids)
        return max(lengths.values(), default=0)

    @property
    def turns(self) -> int:
        return sum(s.kind is Kind.ACTION for s in self.segments)


def check(episode: Episode) -> None:
    """Raise RecordError if the episode breaks an invariant of this module or has no action
    token."""
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
        # a run log stores infinities and NaN as strings
        if not all(is_number(p) and -math.inf < p <= 1e-6 for p in segment.logprobs or ()):
            raise RecordError(
                f"{where} (call {call}): a log-probability above 0, infinite or not a number"
            )
    if call == 0:
        raise RecordError(f"episode {episode.id}: no action token, nothing to learn from")


def require_logprobs(episodes: Iterable[Episode]) -> None:
    """Raise RecordError if an action has no log-probabilities, which PPO needs; the message names
    the first such call."""
    for episode in episodes:
        check(episode)
        actions = (s for s in episode.segments if s.kind is Kind.ACTION)
        for call, segment in enumerate(actions, start=1):
            if segment.logprobs is None:
                raise RecordError(
                    f"episode {episode.id}, call {call}: no log-probabilities of the sampler; use "
                    "cuagent train rft for runs of API models"
                )


def write_episodes(path: Path, episodes: Iterable[Episode]) -> int:
    """Check episodes and append them to a JSONL file, one per line; return the number written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("a", encoding="utf-8") as out:
        for episode in episodes:
            check(episode)
            out.write(json.dumps({"v": VERSION, **asdict(episode)}) + "\n")
            count += 1
    return count


def read_episodes(path: Path) -> Iterator[Episode]:
    """Yield the checked episode of each line. Raises RecordError with file and line."""
    try:
        source = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror}; create it with cuagent train collect"
        ) from error
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
    """Convert the JSON object of one line to an episode. Raises ValueError, KeyError or
    TypeError."""
    version = data.pop("v")
    if version != VERSION:
        raise ValueError(f"version {version}; this cuagent reads version {VERSION}")
    segments = tuple(_segment(s) for s in data.pop("segments"))
    calls = tuple(Call(**check_types(Call, c)) for c in data.pop("calls"))
    if not math.isfinite(check_types(Episode, data)["reward"]):
        raise ValueError(f"its reward is {data['reward']!r}")
    if not all(is_number(value) for value in data.get("figures", {}).values()):
        raise ValueError(f"its figures are {data['figures']!r}")
    return Episode(segments=segments, calls=calls, **data)


def check_types(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Return `data`. Raises ValueError if a value has another type than the field of class
    `kind`."""
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
        raise ValueError("a token id is not a non-negative integer")
    if logprobs is not None and not all(is_number(p) for p in logprobs):
        raise ValueError("a log-probability is not a number")
    return Segment(
        Kind(data["kind"]),
        tuple(data["ids"]),
        None if logprobs is None else tuple(logprobs),
        check_types(Segment, data)["context"],
    )
