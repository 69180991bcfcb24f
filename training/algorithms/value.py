"""Pretrain the critic (value function) on episodes of the policy, before PPO changes the policy.

The critic is fitted to unfiltered episodes of the policy that PPO starts from (equations 3 and 4 of
CUDA Agent). On the filtered episodes of RFT all rewards are alike, so the critic would learn a
constant. The regression target is the Monte-Carlo return (`lam` 1, unbiased) or, as in the paper, V
+ GAE(`lam`) with the critic's own current values V.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from cuagent.training import parallel
from cuagent.training.algorithms.advantage import advantages_and_returns
from cuagent.training.algorithms.losses import value_loss
from cuagent.training.algorithms.metrics import (
    Metrics,
    critic_metrics,
    drop_metrics_from,
    log_metrics,
)
from cuagent.training.algorithms.reward import Reward, with_reward
from cuagent.training.config import SEEDS, above, at_least, between
from cuagent.training.data.batch import Batch, batch_order, collate
from cuagent.training.data.segments import Episode
from cuagent.training.engines.engine import DeviceGuard
from cuagent.training.policy.checkpoint import (
    SaveTimer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from cuagent.training.policy.model import device_microbatches, per_token, values
from cuagent.training.policy.optimize import AdamW, apply_gradients, make_optimizer, require_finite
from cuagent.training.throttle import Throttle

Say = Callable[[str], None]


@dataclass(frozen=True)
class ValueConfig:
    steps: int | None = None
    """Number of updates; None: the number that `epochs` passes over the episodes need."""
    episodes_per_batch: int = 32
    optimizer: AdamW = field(default_factory=lambda: AdamW(lr=2e-5, warmup=10))
    lam: float = 1.0
    """Lambda of the target. 1: the Monte-Carlo return. Below 1: bootstrapped from the critic's
    current values; the paper has 0.95."""
    reward: Reward = Reward.MILESTONE
    """Reward that the critic predicts; it must be that of the PPO run that follows."""
    tokens_per_microbatch: int = 16384
    seed: int = 0
    save_every: int = 100
    """Steps between two checkpoints; one is also saved after `checkpoint.SAVE_S` seconds."""
    evaluate_every: int = 50
    stop_after: int | None = None
    """Step after which training stops as if interrupted; used by tests of resuming."""
    epochs: float = 4.0
    """Number of training passes of the value model over the episodes."""

    def __post_init__(self) -> None:
        at_least(0, self, "steps")
        above(0, self, "epochs")
        at_least(1, self, "episodes_per_batch", "tokens_per_microbatch")
        at_least(1, self, "save_every", "evaluate_every")
        between(*SEEDS, self, "seed")
        between(0, 1, self, "lam")


def pretrain_value(
    critic: Any,
    episodes: Sequence[Episode],
    heldout: Sequence[Episode],
    config: ValueConfig,
    out: Path,
    say: Say = print,
    guard: DeviceGuard = nullcontext,
) -> Metrics:
    """Train `critic` in place on `episodes`; return the last metrics: the loss, and explained
    variances on `heldout` (on `episodes` if it is empty).

    Metrics and checkpoints are written under `out`, from which a second call resumes. `guard`:
    returns a context to enter for each step.
    """
    episodes, heldout = with_reward(episodes, config.reward), with_reward(heldout, config.reward)
    optimizer = make_optimizer(critic, config.optimizer)
    found = latest_checkpoint(out)
    first = load_checkpoint(found, {"critic": critic}, {"critic": optimizer})[0] if found else 0
    drop_metrics_from(out / "metrics.jsonl", first + 1 if first else 0)
    with guard():
        metrics: Metrics = evaluate_critic(critic, heldout or episodes, config)
    if first == 0:
        log_metrics(out / "metrics.jsonl", 0, metrics, stage="value")
    throttle, timer = Throttle(), SaveTimer()
    steps = value_steps_of(config, len(episodes))
    critic.train()
    for step in range(first, steps):
        chosen = batch_order(len(episodes), config.episodes_per_batch, config.seed, step)
        batch = collate([episodes[i] for i in chosen])
        done = step + 1
        last = done == steps
        evaluates = last or done % config.evaluate_every == 0
        with guard():
            returns = targets(critic, batch, config)
            loss = value_step(critic, batch, returns, config.tokens_per_microbatch)
            norm = apply_gradients(critic, optimizer, config.optimizer, step)
            metrics = {"loss": loss, "grad_norm": norm}
            if evaluates:
                metrics |= evaluate_critic(critic, heldout or episodes, config)
        if throttle.due(evaluates):
            say(f"value {done}/{steps}: loss {loss:.4f}" + _explained(metrics))
        log_metrics(out / "metrics.jsonl", done, metrics, stage="value")
        if timer.due(last or done % config.save_every == 0 or done == config.stop_after):
            require_finite(critic, loss, "value.optimizer.lr")
            save_checkpoint(out, done, {"critic": critic}, {"critic": optimizer}, {})
        if done == config.stop_after:
            break
    return metrics


def value_steps_of(config: ValueConfig, episodes: int) -> int:
    """Return the total number of updates for a data set of `episodes` episodes, from `steps` or
    `epochs`."""
    if config.steps is not None:
        return config.steps
    return max(1, round(config.epochs * max(1, episodes // config.episodes_per_batch)))


def targets(critic: Any, batch: Batch, config: ValueConfig) -> Tensor:
    """Return the critic's regression targets, [B, L] on the CPU: V + GAE(`lam`).

    With `lam` 1 these are the terminal rewards, and the critic does not run.
    """
    if config.lam == 1:
        return batch.outcome
    now = per_token(critic, batch, config.tokens_per_microbatch, values)
    _, returns = advantages_and_returns(
        now, batch.action, batch.row_episode, batch.rewards, 1.0, config.lam
    )
    return returns


def value_step(
    critic: Any,
    batch: Batch,
    returns: Tensor,
    budget: int,
    old: Tensor | None = None,
    clip: float | None = None,
) -> float:
    """Accumulate gradients of the value loss over the batch; return the loss.

    `returns` [B, L]: targets. `budget`: tokens per forward pass. `old` [B, L] and `clip` bound the
    change from earlier values (see `losses.value_loss`); None does not bound it.
    """
    count = batch.action_tokens
    losses = []
    for rows, part in device_microbatches(batch, budget, critic):
        width = part.ids.shape[1]
        before = None if old is None else old[rows, :width].to(critic.device)
        wanted = returns[rows, :width].to(critic.device)
        loss = value_loss(values(critic, part), wanted, part.action, count, before, clip)
        loss.backward()
        losses.append(loss.detach())
    return parallel.sum_number(float(sum(losses)))


def evaluate_critic(critic: Any, episodes: Sequence[Episode], config: ValueConfig) -> Metrics:
    """Return the explained variances of the Monte-Carlo returns by the critic's values, also if
    `config.lam` selects another training target."""
    batch = collate(episodes)
    found = per_token(critic, batch, config.tokens_per_microbatch, values)
    return critic_metrics(found, batch.outcome, batch.action, batch.row_episode)


def _explained(metrics: Metrics) -> str:
    if "ev" not in metrics:
        return ""
    return f", ev {metrics['ev']:.3f}, last quartile {metrics['ev_q4']:.3f}"
