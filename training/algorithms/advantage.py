"""Compute generalized advantage estimates (GAE) over action tokens, and whiten them.

Terminal rewards and the critic's values are converted to one advantage and one return for each
sampled token.
Not covered: intermediate rewards and discounting; gamma is 1 and the reward is terminal, as in CUDA
Agent (arXiv 2602.24286).

Invariants: `compress` removes the tokens of tools and of the chat template first, so inserting such
tokens anywhere changes nothing, and the terminal reward reaches the last action token even if other
tokens follow it. If tool tokens were steps too, lambda < 1 would decay the reward once for each
token of a tool's log; training engines that do so were seen to train worse or to collapse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Function that returns the sum of a tensor over all processes; with one process, its argument."""


@dataclass(frozen=True)
class Actions:
    """Index tensors between a padded batch [B, L] and its compressed layout [E, T], which has
    action tokens only.

    For each of the N action tokens, ordered by episode and time: `rows`, `columns` [N] are its
    position in the batch, `episode`, `step` [N] its position in the compressed layout.
    """

    rows: Tensor
    columns: Tensor
    episode: Tensor
    step: Tensor
    lengths: Tensor
    """Number of action tokens of each episode [E]."""

    def compress(self, x: Tensor) -> Tensor:
        """Gather the action tokens of x [B, L] into [E, T]; zero after the end of an episode."""
        out = x.new_zeros(len(self.lengths), int(self.lengths.max()))
        out[self.episode, self.step] = x[self.rows, self.columns]
        return out

    def expand(self, x: Tensor, like: Tensor) -> Tensor:
        """Scatter x [E, T] back to the shape of `like` [B, L]; zero where there is no action."""
        out = torch.zeros_like(like, dtype=x.dtype)
        out[self.rows, self.columns] = x[self.episode, self.step]
        return out

    @property
    def present(self) -> Tensor:
        """Mask [E, T] of the compressed layout: True where an episode has an action token, False
        after its end."""
        steps = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return steps < self.lengths[:, None]


def actions(action: Tensor, row_episode: Tensor) -> Actions:
    """Return the positions of the action tokens of a batch in both layouts.

    `action` [B, L] is true where a token was sampled; `row_episode` [B] is the index of each row's
    episode: it starts at 0 and never decreases (an episode has one row per context window). Raises
    ValueError if an episode has no action token.
    """
    rows, columns = action.nonzero(as_tuple=True)
    episode = row_episode[rows]
    lengths = torch.bincount(episode, minlength=int(row_episode.max()) + 1)
    if bool((lengths == 0).any()):
        missing = int((lengths == 0).nonzero()[0])
        raise ValueError(f"episode {missing} of the batch has no action token")
    first = torch.cumsum(lengths, 0) - lengths
    step = torch.arange(len(rows), device=rows.device) - first[episode]
    return Actions(rows, columns, episode, step, lengths)


def gae(values: Tensor, rewards: Tensor, lengths: Tensor, lam: float | Tensor) -> Tensor:
    """Compute GAE with gamma = 1 on compressed episodes (arXiv 1506.02438, eq. 16).

    `values` [E, T]: V before each action token; `rewards` [E]: terminal; `lengths` [E]: action
    tokens; `lam`: lambda, one for all or one per episode [E]. Returns advantages [E, T], zero past
    the end.
        A_t = delta_t + lam * A_{t+1},  delta_t = V_{t+1} - V_t,  delta_last = R - V_last
    """
    out = torch.zeros_like(values)
    ahead = torch.zeros_like(rewards)  # A_{t+1}
    following = rewards.to(values.dtype)  # V_{t+1}; the reward after the last action
    for t in reversed(range(values.shape[1])):
        alive = lengths > t
        last = lengths == t + 1
        carried = torch.where(last, torch.zeros_like(ahead), lam * ahead)
        ahead = torch.where(alive, following - values[:, t] + carried, ahead)
        following = torch.where(alive, values[:, t], following)
        out[:, t] = torch.where(alive, ahead, torch.zeros_like(ahead))
    return out


def length_adaptive(lengths: Tensor, alpha: float = 0.05, floor: float = 0.9) -> Tensor:
    """Return lambda = 1 - 1 / (alpha * length) per episode [E], within [floor, 1] (arXiv
    2504.05118).

    With a fixed lambda the reward does not reach the first tokens of a long episode (0.95 ** 500 =
    7e-12). This lambda reaches back over a fixed share of the episode.
    """
    return (1 - 1 / (alpha * lengths.clamp(min=1))).clamp(floor, 1.0)


def advantages_and_returns(
    values: Tensor,
    action: Tensor,
    row_episode: Tensor,
    rewards: Tensor,
    lam_actor: float | None,
    lam_critic: float,
    alpha: float = 0.05,
) -> tuple[Tensor, Tensor]:
    """Return the actor's advantages and the critic's returns, both [B, L]; zero where there is no
    action.

    `values`, `action` [B, L]; `row_episode` [B]; `rewards` [E]. `lam_actor` None: `length_adaptive`
    with `alpha`. Returns are V + GAE(lam_critic); with lam_critic 1 they are Monte-Carlo returns.
    """
    layout = actions(action, row_episode)
    compact = layout.compress(values)
    lam = length_adaptive(layout.lengths, alpha) if lam_actor is None else lam_actor
    advantages = gae(compact, rewards, layout.lengths, lam)
    returns = compact + gae(compact, rewards, layout.lengths, lam_critic)
    return layout.expand(advantages, values), layout.expand(returns, values)


def naive_advantages(
    values: Tensor, real: Tensor, action: Tensor, rewards: Tensor, lam: float
) -> Tensor:
    """Compute GAE with every token as a step, tool output and template tokens included.

    This is a common mistake and serves as an arm of the ablation only. `values`, `real` (True for
    tokens, False for padding), `action` [B, L]; one row per episode. Returns advantages [B, L].
    """
    everything = real.clone()
    everything[:, 0] = False  # no state precedes the first token
    rows = torch.arange(len(values), device=values.device)
    layout = actions(everything, rows)
    full = gae(layout.compress(values), rewards, layout.lengths, lam)
    return layout.expand(full, values) * action


def whiten(x: Tensor, mask: Tensor, reduce: Reduce = lambda t: t) -> Tensor:
    """Return `x` scaled to mean 0 and standard deviation 1 over the positions where `mask` is True;
    0 elsewhere.

    `reduce` sums a tensor over all processes, so that every rank applies the same mean and
    deviation. Whitening per episode would erase which episodes were good.
    """
    masked = x[mask].double()
    total = reduce(torch.stack([masked.new_tensor(float(masked.numel())), masked.sum()]))
    mean = total[1] / total[0]
    # A second pass: the one-pass formula loses all digits where the mean is large.
    variance = reduce(((masked - mean) ** 2).sum()) / total[0]
    white = (x - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask, white, 0.0).to(x.dtype)
