"""Convert episodes to padded tensors, and split a batch into microbatches of bounded size.

One convention holds everywhere: **column t refers to token t**. `action[:, t]` says that token t
was sampled, `logprobs[:, t]` is its log-probability, and a value at t is V of the state just before
token t. Column 0 is never an action. A model's outputs at t predict token t + 1; only
`model.of_actions` and `model.values` shift them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from cuagent.training.data.packing import Packing, pack
from cuagent.training.data.segments import Episode, Kind, RecordError, Segment


@dataclass(frozen=True)
class Batch:
    """E episodes as padded tensors of B rows, one row for each context window, padded on the right
    to L tokens."""

    ids: Tensor
    """[B, L] int64: token ids."""
    real: Tensor
    """[B, L] bool: False on padding. It cannot be derived from the ids, because id 0 may be a real
    token."""
    action: Tensor
    """[B, L] bool: True for tokens that the policy sampled."""
    drawn: Tensor
    """[N] int64: positions of the N action tokens in the flattened [B * L]. They are computed on
    the CPU in advance: computing them on the GPU would make the host wait for all queued work."""
    logprobs: Tensor
    """[B, L] float: log-probabilities from the sampler; zero where the sampler returned none."""
    row_episode: Tensor
    """[B] int64: index of each row's episode. The indices never decrease."""
    rewards: Tensor
    """[E] float: terminal reward of each episode."""
    packing: Packing | None = None
    """The same tokens in one row without padding; None if the model runs on padded rows."""

    def to(self, device: torch.device | str) -> Batch:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: x.to(device) for name, x in parts.items() if x is not None})

    @property
    def action_tokens(self) -> int:
        return int(self.action.sum())

    @property
    def outcome(self) -> Tensor:
        """The terminal reward of each token's episode, [B, L]: its Monte-Carlo return."""
        return self.rewards[self.row_episode][:, None].expand(self.ids.shape)


def collate(episodes: Sequence[Episode], longest: int | None = None) -> Batch:
    """Convert episodes to one padded batch. Raises RecordError if a window exceeds `longest`
    tokens."""
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
        raise RecordError(
            f"episode {worst}: {width} tokens exceed the model's context of {longest}"
        )
    # numpy assigns short slices in a tenth of torch's time.
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
    """Yield groups of row indices; a group has at most `budget` padded tokens, or a single longer
    row.

    `lengths` [B]: real tokens of each row. Rows of similar length share a group, which makes
    padding small. Losses are sums over tokens, so the grouping changes no gradient.
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


def packed_microbatches(lengths: Tensor, budget: int) -> list[Tensor]:
    """Return groups of row indices; a group has at most `budget` real tokens, or a single longer
    row.

    `lengths` [B]: real tokens of each row. First-fit decreasing: rows are placed longest first,
    each into the first group that has room. The groups are few and of similar size, so several
    processes finish together.
    """
    tokens = lengths.tolist()
    groups: list[list[int]] = []
    room: list[int] = []
    for row in torch.argsort(lengths, descending=True, stable=True).tolist():
        at = next((i for i, free in enumerate(room) if free >= tokens[row]), len(groups))
        if at == len(groups):
            groups.append([])
            room.append(budget)
        groups[at].append(row)
        room[at] -= tokens[row]
    return [torch.tensor(group) for group in groups]


def take(batch: Batch, rows: Tensor, width: int | None = None, packs: bool = False) -> Batch:
    """Return a batch of the given rows, cut to `width` tokens (None: the length of the longest
    row).

    `packs`: also store the rows in packed form, unless they have one length: then there is no
    padding to save, and attention over a batch is faster than over packed rows. `row_episode` and
    `rewards` still refer to all episodes.
    """
    width = width or int(batch.real[rows].sum(1).max())
    ids, real = batch.ids[rows, :width], batch.real[rows, :width]
    action = batch.action[rows, :width]
    drawn = action.flatten().nonzero().flatten()
    return Batch(
        ids,
        real,
        action,
        drawn,
        batch.logprobs[rows, :width],
        batch.row_episode[rows],
        batch.rewards,
        pack(ids, real, drawn) if packs and not bool(real.all()) else None,
    )


def batch_order(n: int, size: int, seed: int, step: int) -> list[int]:
    """Return the indices (below `n`) of the items in batch number `step`; a batch has min(size, n)
    items.

    Each epoch is one permutation, cut into batches; the remainder of an epoch is skipped. The
    result depends on the arguments alone, so a resumed run needs no saved state.
    """
    size = min(size, n)
    epoch, at = divmod(step, n // size)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(n, generator=generator)[at * size : (at + 1) * size].tolist()
