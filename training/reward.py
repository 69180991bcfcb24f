"""What an episode is worth to the learner: the milestones, or for an ablation the bare ratio.

Metrics and reports always speak of the milestones, so that arms can be compared.
Invariant: no record on disk is changed; the worth is derived when an episode is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from cuagent.training.segments import Episode


class Reward(StrEnum):
    MILESTONE = "milestone"
    """-1 wrong, 1 right, 2 faster than eager, 3 than compile too: the paper's."""
    RATIO = "ratio"
    """-1 wrong, else the ratio over compile (eager where that is all there is; 1 if untimed): the
    paper's ablation, in which one lucky timing outweighs many right kernels."""


def max_reward(timed: bool) -> float:
    """The best milestone that there is."""
    return 3.0 if timed else 1.0


def with_reward(episodes: Sequence[Episode], reward: Reward) -> list[Episode]:
    """The episodes with the reward that is to be learned from."""
    if reward is Reward.MILESTONE:
        return list(episodes)
    return [replace(e, reward=ratio(e)) for e in episodes]


def ratio(episode: Episode) -> float:
    if episode.reward < 0:
        return -1.0
    over_eager = episode.figures.get("over_eager", 1.0)
    return episode.figures.get("over_compile", over_eager)
