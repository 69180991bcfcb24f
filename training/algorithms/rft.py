"""Run rejection fine-tuning (RFT): the policy imitates its good episodes.

RFT is supervised learning of every sampled token of the episodes that `filters.filter_episodes`
accepts (equation 2 of CUDA Agent). The same loop trains the demo's base policy on unfiltered
demonstrations.
Not covered: the choice of episodes, sampling.
Invariant: batch k of a run depends on the seed and k alone, so a resumed run equals an
uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cuagent.training import parallel
from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.algorithms.metrics import Metrics, drop_metrics_from, log_metrics
from cuagent.training.config import SEEDS, above, at_least, between
from cuagent.training.data.batch import batch_order, collate
from cuagent.training.data.segments import Episode
from cuagent.training.engines.engine import DeviceGuard
from cuagent.training.policy.best import BestWeights
from cuagent.training.policy.checkpoint import (
    SaveTimer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from cuagent.training.policy.model import device_microbatches, logprobs_of, per_token
from cuagent.training.policy.optimize import AdamW, apply_gradients, make_optimizer, require_finite
from cuagent.training.throttle import Throttle

Say = Callable[[str], None]


@dataclass(frozen=True)
class RftConfig:
    steps: int | None = None
    """Number of updates; None: the number that `epochs` passes over the episodes need."""
    episodes_per_batch: int = 16
    optimizer: AdamW = field(default_factory=lambda: AdamW(lr=1e-5, warmup=10))
    tokens_per_microbatch: int = 16384
    """Largest number of padded tokens per forward pass. It bounds memory and does not change the
    result."""
    seed: int = 0
    save_every: int = 100
    """Steps between two checkpoints; one is also saved after `checkpoint.SAVE_S` seconds."""
    evaluate_every: int | None = None
    """Steps between two evaluations on the held-out tasks; None evaluates after each epoch."""
    stop_after: int | None = None
    """Step after which training stops as if interrupted; used by tests of resuming."""
    epochs: float = 3.0
    """Number of training passes over the episodes."""
    patience: int | None = 2
    """Number of evaluations without a lower held-out loss after which training stops; None: no
    early stop."""

    def __post_init__(self) -> None:
        at_least(0, self, "steps")
        above(0, self, "epochs", "patience")
        at_least(1, self, "episodes_per_batch", "tokens_per_microbatch")
        at_least(1, self, "save_every", "evaluate_every")
        between(*SEEDS, self, "seed")


def rft(
    actor: Any,
    episodes: Sequence[Episode],
    heldout: Sequence[Episode],
    config: RftConfig,
    out: Path,
    say: Say = print,
    guard: DeviceGuard = nullcontext,
) -> Metrics:
    """Train `actor` in place by imitation of `episodes`; return the last metrics.

    Metrics and checkpoints are written under `out`, from which a second call resumes. The actor
    ends with the weights of the lowest loss on `heldout`, or with the last ones if `heldout` is
    empty. `guard`: returns a context to enter for each step.
    """
    optimizer = make_optimizer(actor, config.optimizer)
    found = latest_checkpoint(out)
    first, position = (
        load_checkpoint(found, {"actor": actor}, {"actor": optimizer}) if found else (0, {})
    )
    steps, best = steps_of(config, len(episodes)), BestWeights(out, position)
    every = config.evaluate_every or steps_per_epoch(config, len(episodes))
    drop_metrics_from(out / "metrics.jsonl", first + 1)
    metrics: Metrics = {}
    throttle, timer = Throttle(), SaveTimer()
    actor.train()
    for step in range(first, steps):
        if best.is_over(config.patience):
            say(f"rft stops at {step}/{steps}: the held-out loss was lowest at {best.step}")
            break
        chosen = batch_order(len(episodes), config.episodes_per_batch, config.seed, step)
        done = step + 1
        last = done == steps
        evaluates = last or done % every == 0
        with guard():
            metrics = rft_step(actor, optimizer, [episodes[i] for i in chosen], config, step)
            if heldout and evaluates:
                loss = imitation(actor, heldout, config.tokens_per_microbatch)
                metrics["heldout_loss"] = loss
                best.see(done, loss, {"actor": actor})
        log_metrics(out / "metrics.jsonl", done, metrics, stage="rft")
        if throttle.due(last or (bool(heldout) and evaluates)):
            say(f"rft {done}/{steps}: loss {metrics['loss']:.4f}" + _heldout(metrics))
        ends = last or best.is_over(config.patience)
        if timer.due(ends or done % config.save_every == 0 or done == config.stop_after):
            require_finite(actor, metrics["loss"], "rft.optimizer.lr")
            save_checkpoint(out, done, {"actor": actor}, {"actor": optimizer}, best.position)
        if done == config.stop_after:
            return metrics
    best.restore({"actor": actor})
    return metrics


def steps_per_epoch(config: RftConfig, episodes: int) -> int:
    """Return the number of full batches in one pass over `episodes` episodes; at least 1."""
    return max(1, episodes // config.episodes_per_batch)


def steps_of(config: RftConfig, episodes: int) -> int:
    """Return the total number of updates for a data set of `episodes` episodes, from `steps` or
    `epochs`."""
    if config.steps is not None:
        return config.steps
    return max(1, round(config.epochs * steps_per_epoch(config, episodes)))


def rft_step(
    actor: Any,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[Episode],
    config: RftConfig,
    step: int,
) -> Metrics:
    """Make one imitation update from one batch of episodes; return the loss, the gradient norm and
    the number of action tokens."""
    batch = collate(episodes)
    count = batch.action_tokens
    losses = []
    for _, part in device_microbatches(batch, config.tokens_per_microbatch, actor):
        loss = imitation_loss(logprobs_of(actor, part), part.action, count)
        loss.backward()
        losses.append(loss.detach())  # no .item() here, which would synchronize
    total = parallel.sum_number(float(sum(losses)))
    norm = apply_gradients(actor, optimizer, config.optimizer, step)
    return {"loss": total, "grad_norm": norm, "action_tokens": count}


def imitation(actor: Any, episodes: Sequence[Episode], budget: int) -> float:
    """Return the mean negative log-likelihood of the sampled tokens under `actor`, in nats per
    token.

    `budget`: tokens per forward pass.
    """
    batch = collate(episodes)
    found = per_token(actor, batch, budget, logprobs_of)
    return -float(found[batch.action].mean())


def _heldout(metrics: Metrics) -> str:
    return f", held out {metrics['heldout_loss']:.4f}" if "heldout_loss" in metrics else ""
