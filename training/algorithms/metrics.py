"""Compute statistics of a batch: the critic's quality, the size of the policy's update, the
episodes' outcomes.

Explained variance of returns G by values V is given in both common definitions: `centred` is 1 -
Var(G - V) / Var(G), `plain` is 1 - E[(G - V)^2] / Var(G). A constant offset of V lowers `plain`
only. For example, V = 0 for rewards of mean 1.7 and variance 0.45 has 0 in the first and -6.4 in
the second. It is also given by progress quartile: the first tokens cannot predict the outcome, so
the value over all tokens hides a critic that is good late in an episode.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuagent.agent.stop import Stop
from cuagent.training import parallel, tensorboard
from cuagent.training.algorithms.advantage import actions
from cuagent.training.data.segments import Episode
from cuagent.training.files import read_lines, write_atomic

Metrics = dict[str, float]


def explained_variance(values: Tensor, returns: Tensor) -> tuple[float, float]:
    """Return (centred, plain) explained variance of flat tensors [N]; NaN if all returns are
    equal."""
    if not returns.numel():  # an empty quartile: episodes of fewer than four tokens
        return math.nan, math.nan
    variance = float(returns.double().var(unbiased=False))
    if variance < 1e-12:
        return math.nan, math.nan
    error = (returns - values).double()
    return (
        1 - float(error.var(unbiased=False)) / variance,
        1 - float((error**2).mean()) / variance,
    )


def critic_metrics(values: Tensor, returns: Tensor, action: Tensor, row_episode: Tensor) -> Metrics:
    """Compute explained variance over all action tokens and by quartile of each episode's progress.

    `values`, `returns`, `action` [B, L]; `row_episode` [B].
    """
    layout = actions(action, row_episode)
    v, g = layout.compress(values), layout.compress(returns)
    present = layout.present
    out: Metrics = {}
    out["ev"], out["ev_plain"] = explained_variance(v[present], g[present])
    steps = torch.arange(v.shape[1], device=v.device)
    quartile = (4 * steps // layout.lengths[:, None]).clamp(max=3)
    for q in range(4):
        chosen = present & (quartile == q)
        out[f"ev_q{q + 1}"], out[f"ev_plain_q{q + 1}"] = explained_variance(v[chosen], g[chosen])
    out["value_mean"] = float(v[present].mean())
    out["return_mean"] = float(g[present].mean())
    return out


def ratio_metrics(log_ratio: Tensor, clipped: Tensor) -> Metrics:
    """Return statistics of the change from the sampling policy to the current policy.

    `log_ratio`, `clipped` [N]: one entry per action token (see `PolicyLoss`).
    """
    ratio = log_ratio.double().exp()
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "log_ratio_max": float(log_ratio.abs().max()),
        "approx_kl": float((ratio - 1 - log_ratio.double()).mean()),
        "clip_fraction": float(clipped.float().mean()),
    }


def episode_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Return the mean reward and other statistics of a set of episodes.

    `length_clipped`: share of episodes in which a length limit cut a turn or ended the
    conversation. `step_limited`: share of episodes that ran out of turns.
    """
    n = len(episodes)
    rewards = [e.reward for e in episodes]
    mean = sum(rewards) / n
    calls = [c for e in episodes for c in e.calls]
    solutions = Counter(e.solution for e in episodes if e.solution)
    return {
        "episodes": n,
        "reward": mean,
        "reward_std": math.sqrt(sum((r - mean) ** 2 for r in rewards) / n),
        "correct": sum(r > 0 for r in rewards) / n,
        "faster_than_compile": sum(r >= 3 for r in rewards) / n,
        "length_clipped": sum(is_cut(e) for e in episodes) / n,
        "step_limited": sum(e.stop == Stop.STEP_LIMIT for e in episodes) / n,
        "bad_calls": sum(not (c.known and c.valid) for c in calls) / max(len(calls), 1),
        "turns": sum(e.turns for e in episodes) / n,
        "action_tokens": sum(e.action_tokens for e in episodes) / n,
        "tokens": sum(e.tokens for e in episodes) / n,
        "distinct_solutions": len(solutions) / n,
    }


def task_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean reward of each played task, by task digest."""
    rewards: dict[str, list[float]] = {}
    for e in episodes:
        rewards.setdefault(e.task, []).append(e.reward)
    return {task: sum(r) / len(r) for task, r in rewards.items()}


def reward_fall(means: Sequence[Mapping[str, float]]) -> float:
    """Return the largest fall of the mean reward from an earlier iteration to the last one, on the
    tasks that both played.

    `means`: `task_means` of each iteration. All tasks have the same weight, because a curriculum
    changes how often each task is played. An earlier iteration is skipped if it played fewer than
    half of the last one's tasks. 0 if the reward did not fall.
    """
    now, worst = means[-1], 0.0
    for earlier in means[:-1]:
        common = now.keys() & earlier.keys()
        if common and 2 * len(common) >= len(now):
            worst = max(worst, sum(earlier[t] - now[t] for t in common) / len(common))
    return worst


def is_cut(episode: Episode) -> bool:
    """Return True if a token limit cut a turn of the episode or ended the episode."""
    return episode.stop == Stop.CONTEXT_FULL or episode.figures.get("cut_turns", 0) > 0


def log_metrics(path: Path, step: int, metrics: Mapping[str, float], stage: str) -> None:
    """Append the metrics of one step as a line to metrics.jsonl (first process only); NaN and
    infinity become null."""
    if parallel.rank():
        return
    figures = {k: (v if math.isfinite(v) else None) for k, v in metrics.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"step": step, "stage": stage, **figures}) + "\n")
    tensorboard.write_scalars(path.parent, stage, step, metrics)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of all steps in a metrics.jsonl."""
    return read_lines(path)


def drop_metrics_from(path: Path, step: int) -> list[Metrics]:
    """Delete the lines of metrics.jsonl for `step` and later steps, which a resumed run writes
    again.

    Return the remaining lines.
    """
    if parallel.rank() == 0:
        tensorboard.open_writer(path.parent, step)
    if not path.exists():
        return []
    rows = [m for m in read_metrics(path) if m["step"] < step]
    parallel.barrier()  # all processes have read before one writes
    if parallel.rank() == 0:
        write_atomic(path, "".join(json.dumps(m) + "\n" for m in rows))
    return [{k: math.nan if v is None else v for k, v in m.items()} for m in rows]
