"""Choose the training reward: the milestone reward, or for an ablation the speedup ratio.

Metrics and reports always use the milestone reward, so that arms can be compared.
Invariant: no record on disk changes; the reward is derived when an episode is used for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from cuagent.training.data.segments import Episode


class Reward(StrEnum):
    MILESTONE = "milestone"
    """-1 wrong, 1 right, 2 if it takes over 5 % less time than eager, 3 if also over 5 % less than
    torch.compile: the reward of CUDA Agent (arXiv 2602.24286)."""
    RATIO = "ratio"
    """-1 wrong, else the speedup over torch.compile (over eager if torch.compile was not timed; 1
    if nothing was timed). With this ablation of the paper, one lucky timing outweighs many right
    kernels."""


def max_reward(timed: bool) -> float:
    """Return the largest milestone reward; `timed`: True if kernels are timed."""
    return 3.0 if timed else 1.0


def with_reward(episodes: Sequence[Episode], reward: Reward) -> list[Episode]:
    """Return the episodes with their rewards replaced by rewards of the kind `reward`."""
    if reward is Reward.MILESTONE:
        return list(episodes)
    return [replace(e, reward=ratio(e)) for e in episodes]


def ratio(episode: Episode) -> float:
    if episode.reward < 0:
        return -1.0
    over_eager = episode.figures.get("over_eager", 1.0)
    return episode.figures.get("over_compile", over_eager)
