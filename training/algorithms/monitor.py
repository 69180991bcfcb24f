"""Detect a collapsing run by thresholds on the metrics of each PPO iteration.

The signs are those that preceded the collapses in the literature (CUDA Agent figures 4 and 5,
RAGEN, VC-PPO). The thresholds are settings, not published constants.
Not covered: the reaction to an alarm. `ppo.py` warns, stops or rolls back, as `on_alarm` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cuagent.training.config import at_least

NOT_FINITE = "not finite"


class Action(StrEnum):
    """The reaction to a severe alarm."""

    WARN = "warn"
    STOP = "stop"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Alarm:
    """A sign that the training run is collapsing.

    A severe alarm stops the run or rewinds it to a checkpoint, unless `on_alarm` is `warn`.
    """

    name: str
    text: str
    severe: bool = False
    back: int = 0
    """Number of iterations to undo, in addition to the current one. 0: only the current update
    failed. 1: the current episodes show the fault, so the previous update caused it."""


@dataclass(frozen=True)
class Limits:
    """Thresholds beyond which an iteration raises an alarm."""

    entropy_rise: float = 1.25
    """Alarm above this ratio to the first iteration's entropy: the policy becomes random."""
    entropy_fall: float = 0.10
    """Alarm below this ratio to the first iteration's entropy: the policy stops exploring."""
    first_log_ratio: float = 1e-2
    """Largest |log ratio| of a token before an iteration's first update. The exact value is 0; a
    larger one means a bug, or different probabilities in sampler and trainer."""
    clip_fraction: float = 0.2
    approx_kl: float = 0.05
    ev_last_quartile: float = 0.0
    length_clipped: float = 0.05
    bad_calls: float = 0.10
    """Largest rise of the share of invalid tool calls above the first iteration's share."""
    reward_std: float = 0.25
    """Smallest ratio of the rewards' deviation to the first iteration's. Less means that all
    episodes become alike ("echo trap")."""
    grad_norm: float = 5.0
    """Largest ratio of the actor's gradient norm to its median so far."""
    reward_fall: float = 1.0
    """Largest fall of the mean reward below an earlier iteration, on the tasks that both played.
    More is a severe alarm."""
    patience: int = 3
    """Number of consecutive iterations with low explained variance, or with many episodes cut by
    length, that make the alarm severe."""

    def __post_init__(self) -> None:
        at_least(1, self, "patience")


def alarms(history: Sequence[Mapping[str, float]], limits: Limits, rewound: int = 0) -> list[Alarm]:
    """Return the alarms that the newest iteration raises. `history`: metrics of all iterations,
    oldest first.

    `rewound`: index of the first iteration after the last rewind. Earlier iterations are not
    counted for `patience`, because their weights were discarded.
    """
    now, start = history[-1], history[0]
    found: list[Alarm] = []

    def flag(bad: bool, name: str, text: str, severe: bool = False, back: int = 0) -> None:
        if bad:
            found.append(Alarm(name, text, severe, back))

    def lasting(name: str, above: float | None = None, below: float | None = None) -> bool:
        recent = [h.get(name, math.nan) for h in history[rewound:][-limits.patience :]]
        return len(recent) == limits.patience and all(
            (above is not None and v > above) or (below is not None and v < below) for v in recent
        )

    numbers = ("actor_loss", "critic_loss", "entropy", "grad_norm_actor", "grad_norm_critic",
               "weight_norm_actor", "weight_norm_critic")  # fmt: skip
    broken = [n for n in numbers if n in now and not math.isfinite(now[n])]
    flag(bool(broken), NOT_FINITE, f"{', '.join(broken)} not finite", severe=True)

    e, e0 = now.get("entropy", 0.0), start.get("entropy", 0.0)
    flag(e > limits.entropy_rise * e0 > 0, "entropy", f"entropy rose from {e0:.3f} to {e:.3f}")
    flag(e < limits.entropy_fall * e0, "entropy", f"entropy fell from {e0:.3f} to {e:.3f}")
    r = now.get("first_log_ratio_max", 0.0)
    flag(
        r > limits.first_log_ratio,
        "first ratio",
        f"|log ratio| {r:.4f} before the first update: sampler and trainer disagree",
    )
    c = now.get("clip_fraction", 0.0)
    flag(c > limits.clip_fraction, "clip fraction", f"{c:.0%} of tokens clipped; lower the rate")
    k = now.get("approx_kl", 0.0)
    flag(k > limits.approx_kl, "kl", f"policy moved by {k:.3f} nats in one iteration")
    v = now.get("ev_q4", math.nan)
    flag(
        v < limits.ev_last_quartile,
        "explained variance",
        f"critic explains {v:.2f} of the returns in the last quartile",
        lasting("ev_q4", below=limits.ev_last_quartile),
        limits.patience,
    )
    s = now.get("length_clipped", 0.0)
    flag(
        s > limits.length_clipped,
        "length",
        f"{s:.0%} of episodes cut by length",
        lasting("length_clipped", above=4 * limits.length_clipped),
        limits.patience,
    )
    b, b0 = now.get("bad_calls", 0.0), start.get("bad_calls", 0.0)
    flag(b > b0 + limits.bad_calls, "bad calls", f"bad tool calls rose from {b0:.0%} to {b:.0%}")
    d, d0 = now.get("reward_std", 0.0), start.get("reward_std", 0.0)
    flag(d < limits.reward_std * d0, "reward spread", f"deviation of reward {d0:.2f} to {d:.2f}")
    fell = now.get("reward_fall", 0.0)
    under = f"mean reward {fell:.2f} under its best on the same tasks"
    flag(fell > limits.reward_fall, "reward", under, severe=True, back=1)
    known = (h.get("grad_norm_actor", math.nan) for h in history)
    norms = sorted(norm for norm in known if math.isfinite(norm))
    if len(norms) >= 5:
        g, median = now.get("grad_norm_actor", 0.0), norms[len(norms) // 2]
        flag(g > limits.grad_norm * median, "gradient", f"norm {g:.2f}, median {median:.2f}")
    return found
