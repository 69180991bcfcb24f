"""Generalized advantage estimation over action tokens, and what is done to the result.

For: turning terminal rewards and values into one advantage and one return per sampled token.
Not covered: intermediate rewards and discounting; gamma is 1 and the reward is terminal, as in
CUDA Agent (arXiv 2602.24286).

Invariants: the tokens of tools and of the chat template do not exist here (`compress` takes them
out first), so inserting any number of them anywhere changes nothing, and the terminal reward sits
on the last action token whatever follows it. With tokens of tools left in, lambda < 1 decays the
reward once per log line; engines that do so were seen to train worse or to collapse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all processes; the identity where there is one."""


@dataclass(frozen=True)
class Actions:
    """Where the action tokens of a padded batch go in the compressed layout.

    `rows`, `columns`: position in the batch [N]; `episode`, `step`: position in [E, T]; N tokens
    in all, ordered by episode and time.
    """

    rows: Tensor
    columns: Tensor
    episode: Tensor
    step: Tensor
    lengths: Tensor
    """Action tokens of each episode [E]."""

    def compress(self, x: Tensor) -> Tensor:
        """[B, L] to [E, T], zero after the end of an episode."""
        out = x.new_zeros(len(self.lengths), int(self.lengths.max()))
        out[self.episode, self.step] = x[self.rows, self.columns]
        return out

    def expand(self, x: Tensor, like: Tensor) -> Tensor:
        """[E, T] back to the shape of `like` [B, L], zero where no action stands."""
        out = torch.zeros_like(like, dtype=x.dtype)
        out[self.rows, self.columns] = x[self.episode, self.step]
        return out

    @property
    def present(self) -> Tensor:
        """[E, T], true where an action token stands."""
        steps = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return steps < self.lengths[:, None]


def actions(action: Tensor, row_episode: Tensor) -> Actions:
    """Lay out the action tokens of a batch.

    `action` [B, L] is true where a token was sampled; `row_episode` [B] is the episode of each row,
    not decreasing from 0 (an episode has one row per context window).
    Raises ValueError where an episode has no action token.
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
    """GAE(gamma = 1, lambda) on compressed episodes (Schulman et al., arXiv 1506.02438, eq. 16).

    `values` [E, T]: V before each action token; `rewards` [E]: terminal; `lengths` [E];
    `lam`: one for all, or one per episode [E]. Returns advantages [E, T], zero past the end.
        A_t = delta_t + lam * A_{t+1},  delta_t = V_{t+1} - V_t,  delta_last = R - V_last
    """
    out = torch.zeros_like(values)
    ahead = torch.zeros_like(rewards)  # A_{t+1}
    following = rewards.to(values.dtype)  # V_{t+1}; at the end the reward takes its place
    for t in reversed(range(values.shape[1])):
        alive = lengths > t
        last = lengths == t + 1
        carried = torch.where(last, torch.zeros_like(ahead), lam * ahead)
        ahead = torch.where(alive, following - values[:, t] + carried, ahead)
        following = torch.where(alive, values[:, t], following)
        out[:, t] = torch.where(alive, ahead, torch.zeros_like(ahead))
    return out


def monte_carlo(rewards: Tensor, lengths: Tensor) -> Tensor:
    """Returns with gamma 1: every action token of an episode sees its terminal reward. [E, T]."""
    steps = torch.arange(int(lengths.max()), device=rewards.device)
    return rewards[:, None] * (steps < lengths[:, None])


def length_adaptive(lengths: Tensor, alpha: float = 0.05, floor: float = 0.9) -> Tensor:
    """lambda = 1 - 1 / (alpha * l) per episode, within [floor, 1] (VAPO, arXiv 2504.05118).

    A fixed lambda makes the reward invisible to the first tokens of a long episode
    (0.95 ** 500 = 7e-12); this one keeps the horizon a fixed share of the episode.
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
    """Advantages for the actor and returns for the critic, both [B, L], zero off the actions.

    `values`, `action` [B, L]; `row_episode` [B]; `rewards` [E]. `lam_actor` None means length-
    adaptive with `alpha`. Returns are V + GAE(lam_critic): Monte-Carlo where that is 1.
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
    """The widespread wrong way, for the ablation only: every token is a step, reward at the end.

    `values`, `real` (not padding), `action` [B, L]; one row per episode. Returns [B, L].
    """
    everything = real.clone()
    everything[:, 0] = False  # no state stands before the first token
    rows = torch.arange(len(values), device=values.device)
    layout = actions(everything, rows)
    full = gae(layout.compress(values), rewards, layout.lengths, lam)
    return layout.expand(full, values) * action


def whiten(x: Tensor, mask: Tensor, reduce: Reduce = lambda t: t) -> Tensor:
    """Mean 0, deviation 1 over the true positions of the global batch; 0 elsewhere.

    `reduce` sums over processes, so that every rank applies the same shift and scale. Never per
    episode: that would erase which episodes were good.
    """
    kept = x[mask].double()
    total = reduce(torch.stack([kept.new_tensor(float(kept.numel())), kept.sum()]))
    mean = total[1] / total[0]
    # A second pass: the one-pass formula loses all digits where the mean is large.
    variance = reduce(((kept - mean) ** 2).sum()) / total[0]
    white = (x - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask, white, 0.0).to(x.dtype)
