"""Episodes to padded tensors, and a batch to microbatches of bounded size.

One convention everywhere: **index t speaks of token t**. `action[:, t]` says that token t was
sampled, `logprobs[:, t]` is its log-probability, a value at t is V of the state just before it.
So column 0 is never an action, and model outputs are shifted once, in `model.action_logits` and
`model.values`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from cuagent.training.segments import Episode, Kind, RecordError, Segment


@dataclass(frozen=True)
class Batch:
    """B rows (one for each context window), padded right to L; E episodes."""

    ids: Tensor
    """[B, L] int64."""
    real: Tensor
    """[B, L] bool, false on padding. Never derived from the ids: id 0 may be a word."""
    action: Tensor
    """[B, L] bool."""
    drawn: Tensor
    """[N] int64: where in [B * L] the N action tokens lie. Known beforehand, for a GPU that is
    asked where they are makes the host wait until it has nothing left to do."""
    logprobs: Tensor
    """[B, L] float, of the sampler; NaN-free zeros where it gave none."""
    row_episode: Tensor
    """[B] int64, not decreasing."""
    rewards: Tensor
    """[E] float."""

    def to(self, device: torch.device | str) -> Batch:
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    @property
    def action_tokens(self) -> int:
        return int(self.action.sum())

    @property
    def outcome(self) -> Tensor:
        """[B, L]: at every token the terminal reward of its episode, its Monte-Carlo return."""
        return self.rewards[self.row_episode][:, None].expand(self.ids.shape)


def collate(episodes: Sequence[Episode], longest: int | None = None) -> Batch:
    """Pad episodes into one batch. Raises RecordError where a window exceeds `longest` tokens."""
    rows: list[tuple[int, list[Segment]]] = []
    for number, episode in enumerate(episodes):
        windows: dict[int, list[Segment]] = {}
        for segment in episode.segments:
            windows.setdefault(segment.context, []).append(segment)
        rows += [(number, window) for window in windows.values()]
    lengths = [sum(len(s.ids) for s in window) for _, window in rows]
    width = max(lengths)
    if longest is not None and width > longest:
        worst = episodes[rows[lengths.index(width)][0]].id
        raise RecordError(f"episode {worst}: {width} tokens, the model holds {longest}")
    # Filled by numpy, which puts a few numbers in their place in a tenth of torch's time.
    ids = np.zeros((len(rows), width), np.int64)
    marked = np.zeros((len(rows), width), np.bool_)
    logprobs = np.zeros((len(rows), width), np.float32)
    for row, (_, window) in enumerate(rows):
        at = 0
        for segment in window:
            span = slice(at, at + len(segment.ids))
            ids[row, span] = segment.ids
            marked[row, span] = segment.kind is Kind.ACTION
            if segment.logprobs is not None:
                logprobs[row, span] = segment.logprobs
            at = span.stop
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    action = torch.from_numpy(marked)
    return Batch(
        torch.from_numpy(ids),
        real,
        action,
        action.flatten().nonzero().flatten(),
        torch.from_numpy(logprobs),
        torch.tensor([number for number, _ in rows]),
        torch.tensor([e.reward for e in episodes], dtype=torch.float32),
    )


def microbatches(lengths: Tensor, budget: int) -> Iterator[Tensor]:
    """Row indices in groups of at most `budget` padded tokens (or a single longer row).

    `lengths` [B]: real tokens of each row. Rows of similar length share a group, so that little
    padding is computed; the losses are sums over tokens, so the grouping changes no gradient.
    """
    order, tokens = torch.argsort(lengths, stable=True).tolist(), lengths.tolist()
    group: list[int] = []
    for row in order:
        if group and (len(group) + 1) * tokens[row] > budget:
            yield torch.tensor(group)
            group = []
        group.append(row)
    if group:
        yield torch.tensor(group)


def take(batch: Batch, rows: Tensor, width: int | None = None) -> Batch:
    """Some rows, cut to `width` (to their longest); `row_episode` and `rewards` still speak of all
    episodes."""
    width = width or int(batch.real[rows].sum(1).max())
    action = batch.action[rows, :width]
    return Batch(
        batch.ids[rows, :width],
        batch.real[rows, :width],
        action,
        action.flatten().nonzero().flatten(),
        batch.logprobs[rows, :width],
        batch.row_episode[rows],
        batch.rewards,
    )


def batch_order(n: int, size: int, seed: int, step: int) -> list[int]:
    """Indices of batch `step` over `n` items: epochs of one permutation each, cut into batches.

    Depends on its arguments alone, so that resuming needs no state; what does not fill a batch at
    the end of an epoch is left for the next permutation to choose.
    """
    size = min(size, n)
    epoch, at = divmod(step, n // size)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(n, generator=generator)[at * size : (at + 1) * size].tolist()
