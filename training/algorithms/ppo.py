"""Train with PPO against the real verifier: sample episodes, score them, update actor and critic.

The loop is `ppo`. Objective: equation 5 of CUDA Agent with DAPO's global token mean; advantages by
`advantage.py` over action tokens only.
Not covered: how episodes are made. `collect(iteration)` returns them, sampled from the current
actor (`rollout.py`, or a simulated environment in tests).
Invariant: only weights, optimizers and metrics outlive an iteration, so a resumed run equals an
uninterrupted one if `collect` depends on the iteration alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuagent.training import parallel
from cuagent.training.algorithms.advantage import advantages_and_returns, naive_advantages, whiten
from cuagent.training.algorithms.losses import Clip, kl_to, policy_loss, truncated_weights
from cuagent.training.algorithms.metrics import (
    Metrics,
    critic_metrics,
    drop_metrics_from,
    episode_metrics,
    log_metrics,
    ratio_metrics,
    reward_fall,
    task_means,
)
from cuagent.training.algorithms.monitor import NOT_FINITE, Action, Limits, alarms
from cuagent.training.algorithms.reward import Reward, with_reward
from cuagent.training.algorithms.value import value_step
from cuagent.training.config import SEEDS, above, at_least, between
from cuagent.training.data.batch import Batch, collate, take
from cuagent.training.data.segments import Episode, require_logprobs
from cuagent.training.engines.engine import DeviceGuard
from cuagent.training.files import read_lines, write_atomic
from cuagent.training.policy.best import BestWeights
from cuagent.training.policy.checkpoint import (
    Modules,
    latest_checkpoint,
    load_checkpoint,
    rewind,
    save_checkpoint,
)
from cuagent.training.policy.model import (
    device_microbatches,
    logprobs_and_entropy,
    logprobs_of,
    per_token,
    values,
)
from cuagent.training.policy.optimize import AdamW, apply_gradients, make_optimizer, weight_norm

Collect = Callable[[int], Sequence[Episode]]
"""A function that returns the episodes of iteration i, sampled from the current actor."""
ShouldStop = Callable[[], bool]
Say = Callable[[str], None]


@dataclass(frozen=True)
class PpoConfig:
    """Settings of PPO: the paper's values where it gives them; its learning rates are for a 230B
    model."""

    iterations: int = 150
    minibatches: int = 1
    """Updates for each batch of episodes; the paper makes one."""
    epochs: int = 1
    actor: AdamW = field(default_factory=lambda: AdamW(lr=3e-6))
    critic: AdamW = field(default_factory=lambda: AdamW(lr=6e-6))
    clip: Clip = field(default_factory=Clip)
    value_clip: float | None = None
    lam_actor: float | None = 0.95
    """None: length-adaptive, 1 - 1 / (alpha * action tokens)."""
    lam_critic: float = 0.95
    alpha: float = 0.05
    reward: Reward = Reward.MILESTONE
    naive_gae: bool = False
    """Ablation only: count tool tokens as steps too."""
    importance_cap: float | None = 2.0
    """Cap of truncated importance sampling between sampler and trainer; None assumes that they
    agree."""
    kl_weight: float = 0.0
    """Weight of the KL to the policy that PPO started from; the paper has none."""
    critic_only: int = 0
    """Number of first iterations in which only the critic learns."""
    tokens_per_microbatch: int = 16384
    seed: int = 0
    save_every: int = 5
    evaluate_every: int = 10
    """Iterations between two evaluations on the held-out tasks; the start is evaluated too."""
    limits: Limits = field(default_factory=Limits)
    on_alarm: Action = Action.WARN
    rollbacks: int = 3
    """Number of severe alarms that may rewind the run before it stops."""

    def __post_init__(self) -> None:
        at_least(0, self, "iterations", "critic_only", "rollbacks")
        at_least(0, self, "kl_weight", "value_clip")
        above(0, self, "importance_cap", "alpha")
        between(0, 1, self, "lam_actor", "lam_critic")
        between(*SEEDS, self, "seed")
        at_least(1, self, "minibatches", "epochs", "tokens_per_microbatch", "save_every")
        at_least(1, self, "evaluate_every")


def ppo(
    actor: Any,
    critic: Any,
    collect: Collect,
    config: PpoConfig,
    out: Path,
    say: Say = print,
    reference: Any | None = None,
    should_stop: ShouldStop = lambda: False,
    guard: DeviceGuard = nullcontext,
    evaluate: Collect | None = None,
) -> list[Metrics]:
    """Train both models in place; return the metrics of all iterations.

    `evaluate`: returns episodes on held-out tasks after a number of iterations. With it the models
    end with the weights of the best evaluation, which may be those of the start.
    `reference`: the policy that `kl_weight` pulls towards. `should_stop`: called after each
    iteration; True ends the run; all processes must return the same answer. `guard`: held for each
    iteration's updates. metrics.jsonl and checkpoints are written under `out`; a second call with
    the same `out` resumes from the newest checkpoint.
    """
    modules = {"actor": actor, "critic": critic}
    optimizers = {
        "actor": make_optimizer(actor, config.actor),
        "critic": make_optimizer(critic, config.critic),
    }
    first, position = 0, {"rollbacks": 0, "rewound": 0, "stopped": 0}
    # Keep the checkpoints that alarms may rewind to.
    rewinds = config.on_alarm is not Action.WARN
    keep = 1 + math.ceil(config.limits.patience / config.save_every) if rewinds else 2
    if found := latest_checkpoint(out):
        first, known = load_checkpoint(found, modules, optimizers)
        position |= known
        best = BestWeights(out, position)
    else:
        best = BestWeights(out, position)
        judge(0, evaluate, best, modules, say)
        save_checkpoint(out, 0, modules, optimizers, position | best.position)
    history: list[Metrics] = drop_metrics_from(out / "metrics.jsonl", first)
    means = read_task_means(out / "task_rewards.jsonl", first)
    if position["stopped"] and rewinds:
        say("the run was stopped by an alarm; set ppo.on_alarm=warn to continue it")
        return history

    for iteration in range(first, config.iterations):
        # Halve the rate after each rewind: the same rate would fail in the same way.
        rate = config.actor.lr / 2 ** position["rollbacks"]
        current = replace(config, actor=replace(config.actor, lr=rate))
        played: list[Episode] = []

        def noted(iteration: int, played: list[Episode] = played) -> Sequence[Episode]:
            played += collect(iteration)
            return played

        metrics = iterate(actor, critic, optimizers, noted, current, iteration, reference, guard)
        means.append(task_means(played))
        append_task_means(out / "task_rewards.jsonl", iteration, means[-1])
        metrics["reward_fall"] = reward_fall(means)
        last = iteration + 1 == config.iterations
        judged = last or (iteration + 1) % config.evaluate_every == 0
        if judged:
            metrics |= judge(iteration + 1, evaluate, best, modules, say)
        history.append(metrics)
        log_metrics(out / "metrics.jsonl", iteration, metrics, stage="ppo")
        say(describe(iteration, config.iterations, metrics))

        found_alarms = alarms(history, config.limits, position["rewound"])
        for alarm in found_alarms:
            say(f"  {'ALARM' if alarm.severe else 'warning'}: {alarm.text}")
        if not last and should_stop():  # it may read the metrics
            last = True
            if not judged:
                judge(iteration + 1, evaluate, best, modules, say)
        severe = [alarm for alarm in found_alarms if alarm.severe]
        if severe and rewinds:
            # Also rewind if the run ends here, since the caller saves the model.
            trusted = iteration - max(alarm.back for alarm in severe)
            healthy = rewind(out, trusted, modules, optimizers)
            no_rollbacks_left = position["rollbacks"] == config.rollbacks
            stops = no_rollbacks_left or config.on_alarm is Action.STOP
            ends = last or stops
            position = {
                "rollbacks": position["rollbacks"] + (not ends),
                "rewound": iteration + 1,
                "stopped": int(stops),
            } | best.position
            save_checkpoint(out, iteration + 1, modules, optimizers, position, keep)
            if ends:
                say(f"  stopped with the weights of {healthy.name}")
                break
            say(f"  rewound to {healthy.name}, at half the learning rate")
            continue
        # With on_alarm=warn save after alarms too, so that a kill loses nothing; never save NaN.
        whole = not any(alarm.name == NOT_FINITE for alarm in found_alarms)
        if whole and ((iteration + 1) % config.save_every == 0 or last):
            position |= best.position
            save_checkpoint(out, iteration + 1, modules, optimizers, position, keep)
        if last:
            break
    if evaluate is not None:
        best.restore(modules)
        say(f"kept the weights of iteration {best.step}: held-out reward {-best.loss:+.2f}")
    return history


def judge(
    iterations: int, evaluate: Collect | None, best: BestWeights, modules: Modules, say: Say
) -> Metrics:
    """Play the held-out tasks, keep the weights if they are the best, and return the metrics."""
    if evaluate is None:
        return {}
    modules["actor"].eval()
    found = episode_metrics(evaluate(iterations))
    best.see(iterations, -found["reward"], modules)
    names = ("reward", "correct", "faster_than_compile")
    say(f"  held out after {iterations}: " + ", ".join(f"{n} {found[n]:.2f}" for n in names))
    return {f"heldout_{name}": found[name] for name in names}


def append_task_means(path: Path, iteration: int, means: Mapping[str, float]) -> None:
    """Append one iteration's mean reward of each task (first process only)."""
    if parallel.rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps([iteration, means]) + "\n")


def read_task_means(path: Path, before: int) -> list[dict[str, float]]:
    """Return the mean rewards of the iterations before `before`, and delete later ones."""
    rows = [row for row in (read_lines(path) if path.exists() else []) if row[0] < before]
    parallel.barrier()  # all processes have read before one writes
    if parallel.rank() == 0 and path.exists():
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return [means for _, means in rows]


def iterate(
    actor: Any,
    critic: Any,
    optimizers: Mapping[str, torch.optim.Optimizer],
    collect: Collect,
    config: PpoConfig,
    iteration: int,
    reference: Any | None = None,
    guard: DeviceGuard = nullcontext,
) -> Metrics:
    """Collect episodes and update both models; return the metrics."""
    clock = time.perf_counter()
    actor.eval()
    episodes = collect(iteration)
    require_logprobs(episodes)
    sampled = time.perf_counter() - clock
    metrics = episode_metrics(episodes)
    rewarded = with_reward(episodes, config.reward)
    with guard():
        metrics |= update(actor, critic, optimizers, rewarded, config, iteration, reference)
    return metrics | {"seconds": time.perf_counter() - clock, "seconds_sampling": sampled}


def update(
    actor: Any,
    critic: Any,
    optimizers: Mapping[str, torch.optim.Optimizer],
    episodes: Sequence[Episode],
    config: PpoConfig,
    iteration: int,
    reference: Any | None = None,
) -> Metrics:
    """Make `epochs * minibatches` updates of both models from one batch of episodes."""
    budget = config.tokens_per_microbatch
    batch = collate(episodes)
    # The ratio's denominator is what the *trainer* computes before the update: the ratio is 1 at
    # the first minibatch for every engine, and the engine's error goes into `weights`, capped.
    old, entropy = per_token(actor, batch, budget, logprobs_and_entropy, channels=2)
    baseline = per_token(critic, batch, budget, values)
    reference_logprobs = (
        per_token(reference, batch, budget, logprobs_of) if reference is not None else None
    )
    advantages, returns = estimate(batch, baseline, config)
    cap = config.importance_cap
    weights = truncated_weights(old, batch.logprobs, cap) if cap is not None else None
    # Use the outcome, not `returns`: with lambda < 1 these contain the critic's own values, so an
    # untrained critic explains itself (0.95 was seen on 400 tokens).
    metrics = critic_metrics(baseline, batch.outcome, batch.action, batch.row_episode)
    metrics["entropy"] = float(entropy[batch.action].mean())
    metrics["sampler_gap"] = float((old - batch.logprobs)[batch.action].abs().max())

    moved: list[tuple[Tensor, Tensor]] = []
    sums: Metrics = {}
    steps = config.epochs * config.minibatches
    for step, rows in enumerate(minibatches(batch, config, iteration)):
        mini = take(batch, rows)
        width = mini.ids.shape[1]

        def of(x: Tensor | None, rows: Tensor = rows, width: int = width) -> Tensor | None:
            return None if x is None else x[rows, :width]

        loss = value_step(
            critic, mini, returns[rows, :width], budget, of(baseline), config.value_clip
        )
        critic_norm = apply_gradients(critic, optimizers["critic"], config.critic, iteration)
        add(sums, {"critic_loss": loss / steps, "grad_norm_critic": critic_norm / steps})
        if iteration < config.critic_only:
            continue
        actor_loss, log_ratio, clipped = policy_step(
            actor, mini, of(old), of(advantages), of(weights), of(reference_logprobs), config
        )
        turn_of_actor = iteration - config.critic_only
        actor_norm = apply_gradients(actor, optimizers["actor"], config.actor, turn_of_actor)
        add(sums, {"actor_loss": actor_loss / steps, "grad_norm_actor": actor_norm / steps})
        moved.append((log_ratio, clipped))
        if step == 0:
            sums["first_log_ratio_max"] = float(log_ratio.abs().max())
    if moved:
        metrics |= ratio_metrics(torch.cat([r for r, _ in moved]), torch.cat([c for _, c in moved]))
    metrics |= {"weight_norm_actor": weight_norm(actor), "weight_norm_critic": weight_norm(critic)}
    return metrics | sums


def estimate(batch: Batch, baseline: Tensor, config: PpoConfig) -> tuple[Tensor, Tensor]:
    """Return (whitened advantages, returns), [B, L]. Returns are computed before whitening."""
    advantages, returns = advantages_and_returns(
        baseline,
        batch.action,
        batch.row_episode,
        batch.rewards,
        config.lam_actor,
        config.lam_critic,
        config.alpha,
    )
    if config.naive_gae:
        lam = 0.95 if config.lam_actor is None else config.lam_actor
        advantages = naive_advantages(baseline, batch.real, batch.action, batch.rewards, lam)
    return whiten(advantages, batch.action), returns


def minibatches(batch: Batch, config: PpoConfig, iteration: int) -> list[Tensor]:
    """Return the row indices of each update; all windows of an episode stay together."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + iteration)
    out = []
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(batch.rewards), generator=generator)
        for chosen in shuffled.tensor_split(config.minibatches):
            rows = torch.isin(batch.row_episode, chosen).nonzero().flatten()
            if len(rows):
                out.append(rows)
    return out


def policy_step(
    actor: Any,
    batch: Batch,
    old: Tensor | None,
    advantages: Tensor | None,
    weights: Tensor | None,
    reference_logprobs: Tensor | None,
    config: PpoConfig,
) -> tuple[float, Tensor, Tensor]:
    """Accumulate gradients over the minibatch; return (loss, log ratios [N], clipped [N])."""
    assert old is not None
    assert advantages is not None
    count = batch.action_tokens
    total = 0.0
    ratios, clips = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for rows, part in device_microbatches(batch, config.tokens_per_microbatch, actor):
        width = part.ids.shape[1]

        def of(x: Tensor, rows: Tensor = rows, width: int = width) -> Tensor:
            return x[rows, :width].to(actor.device)

        current = logprobs_of(actor, part)
        result = policy_loss(
            current,
            of(old),
            of(advantages),
            part.action,
            count,
            config.clip,
            None if weights is None else of(weights),
        )
        loss = result.loss
        if reference_logprobs is not None and config.kl_weight:
            loss = loss + config.kl_weight * kl_to(
                current, of(reference_logprobs), part.action, count
            )
        loss.backward()
        total += float(loss.detach())
        ratios.append(result.log_ratio.cpu())
        clips.append(result.clipped.cpu())
    # Gather the tokens of all processes for the statistics; their order does not matter.
    everywhere = parallel.gather_interleaved([(torch.cat(ratios), torch.cat(clips))])
    ratios, clips = [r for r, _ in everywhere], [c for _, c in everywhere]
    return parallel.sum_number(total), torch.cat(ratios), torch.cat(clips)


def add(sums: Metrics, terms: Metrics) -> None:
    for name, value in terms.items():
        sums[name] = sums.get(name, 0.0) + value


def describe(iteration: int, of: int, m: Metrics) -> str:
    """Return the metrics of one iteration as one line of text."""
    return (
        f"ppo {iteration + 1}/{of}: reward {m['reward']:+.2f} (correct {m['correct']:.0%}, "
        f"over compile {m['faster_than_compile']:.0%}), entropy {m['entropy']:.3f}, "
        f"ev {m['ev']:.2f}, cut {m['length_clipped']:.0%}, {m['seconds']:.1f} s"
    )
