"""Train with PPO against the real verifier: sample episodes, score them, update actor and critic.

The loop is `ppo`. The objective is equation 5 of CUDA Agent, averaged over all action tokens of the
batch (DAPO); `advantage.py` computes the advantages.
Not covered: sampling of episodes. `collect(iteration)` returns them, sampled from the current actor
(`rollout.py`, or a simulated environment in tests).
Invariant: only weights, optimizer states and metrics pass from one iteration to the next. So a
resumed run equals an uninterrupted one if `collect` depends on the iteration alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cuagent.training import parallel
from cuagent.training.algorithms.metrics import (
    Metrics,
    drop_metrics_from,
    episode_metrics,
    log_metrics,
    reward_fall,
    task_means,
)
from cuagent.training.algorithms.monitor import NOT_FINITE, Action, alarms
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.algorithms.reward import with_reward
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
from cuagent.training.policy.optimize import make_optimizer
from cuagent.training.rollout.store import HELDOUT, drop_later

Collect = Callable[[int], Sequence[Episode]]
"""Function that samples episodes from the current actor; its argument is the index of the
iteration."""

ShouldStop = Callable[[], bool]

Say = Callable[[str], None]


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
    """Train actor and critic in place by PPO; return the metrics of all iterations.

    `evaluate`: function that returns episodes on held-out tasks; its argument is the number of
    finished iterations. If given, the models end with the weights of the best evaluation, which may
    be the initial ones. `reference`: policy from which `kl_weight` penalizes the KL divergence.
    `should_stop`: called after each iteration; True ends the run; all processes must return the
    same answer. `guard`: returns a context to enter for each iteration's updates. metrics.jsonl and
    checkpoints are written under `out`; a second call with the same `out` resumes from the newest
    checkpoint.
    """
    run = _PpoRun(actor, critic, config, out, say, evaluate)
    if run.was_stopped:
        say("the run was stopped by an alarm; set ppo.on_alarm=warn to continue it")
        return run.history
    for iteration in range(run.first, config.iterations):
        run.iterate(iteration, collect, reference, guard)
        if run.ends_after(iteration, should_stop):
            break
    if evaluate is not None:
        run.best.restore(run.modules)
        say(f"kept the weights of iteration {run.best.step}: held-out reward {-run.best.loss:+.2f}")
    return run.history


class _PpoRun:
    """State of a PPO run: models, optimizers, metrics, and the counters that are stored in
    checkpoints."""

    def __init__(
        self,
        actor: Any,
        critic: Any,
        config: PpoConfig,
        out: Path,
        say: Say,
        evaluate: Collect | None,
    ) -> None:
        """Load the newest checkpoint under `out`; if there is none, evaluate and save the initial
        weights."""
        self.config, self.out, self.say, self.evaluate = config, out, say, evaluate
        self.modules = {"actor": actor, "critic": critic}
        self.optimizers = {
            "actor": make_optimizer(actor, config.actor),
            "critic": make_optimizer(critic, config.critic),
        }
        self.first, self.position = 0, {"rollbacks": 0, "rewound": 0, "stopped": 0}
        self.rewinds = config.on_alarm is not Action.WARN
        # Keep the checkpoints that alarms may rewind to.
        self.keep = 1 + math.ceil(config.limits.patience / config.save_every) if self.rewinds else 2
        if found := latest_checkpoint(out):
            self.first, known = load_checkpoint(found, self.modules, self.optimizers)
            self.position |= known
            self.best = BestWeights(out, self.position)
        else:
            self.best = BestWeights(out, self.position)
            self._judge(0)
            position = self.position | self.best.position
            save_checkpoint(out, 0, self.modules, self.optimizers, position)
        self.history: list[Metrics] = drop_metrics_from(out / "metrics.jsonl", self.first)
        self.means = read_task_means(out / "task_rewards.jsonl", self.first)

    @property
    def was_stopped(self) -> bool:
        """True if an alarm stopped the run earlier and `on_alarm` is not `warn`."""
        return bool(self.position["stopped"]) and self.rewinds

    def iterate(
        self, iteration: int, collect: Collect, reference: Any | None, guard: DeviceGuard
    ) -> None:
        """Run one iteration: collect episodes, update both models, evaluate if an evaluation is
        due, and log the metrics."""
        # Halve the rate after each rewind: the same rate would fail in the same way.
        rate = self.config.actor.lr / 2 ** self.position["rollbacks"]
        config = replace(self.config, actor=replace(self.config.actor, lr=rate))
        played: list[Episode] = []

        def noted(iteration: int) -> Sequence[Episode]:
            played.extend(collect(iteration))
            return played

        actor, critic = self.modules["actor"], self.modules["critic"]
        metrics = iterate(
            actor, critic, self.optimizers, noted, config, iteration, reference, guard
        )
        self.means.append(task_means(played))
        append_task_means(self.out / "task_rewards.jsonl", iteration, self.means[-1])
        metrics["reward_fall"] = reward_fall(self.means)
        if self._is_evaluated(iteration):
            metrics |= self._judge(iteration + 1)
        self.history.append(metrics)
        log_metrics(self.out / "metrics.jsonl", iteration, metrics, stage="ppo")
        self.say(describe(iteration, self.config.iterations, metrics))

    def ends_after(self, iteration: int, should_stop: ShouldStop) -> bool:
        """Handle the iteration's alarms and save a checkpoint; return True if the run ends after
        this iteration."""
        found_alarms = alarms(self.history, self.config.limits, self.position["rewound"])
        for alarm in found_alarms:
            self.say(f"  {'ALARM' if alarm.severe else 'warning'}: {alarm.text}")
        last = iteration + 1 == self.config.iterations
        if not last and should_stop():  # it may read the metrics
            last = True
            if not self._is_evaluated(iteration):
                self._judge(iteration + 1)
        severe = [alarm for alarm in found_alarms if alarm.severe]
        if severe and self.rewinds:
            return self._rewind(iteration, max(alarm.back for alarm in severe), last=last)
        # With on_alarm=warn save after alarms too, so that a kill loses nothing; never save NaN.
        whole = not any(alarm.name == NOT_FINITE for alarm in found_alarms)
        if whole and ((iteration + 1) % self.config.save_every == 0 or last):
            self.position |= self.best.position
            self._save(iteration)
        return last

    def _rewind(self, iteration: int, back: int, *, last: bool) -> bool:
        """Undo iterations: restore the checkpoint from before iteration `iteration - back`.

        Return True if the run must end now: no rollbacks are left, `on_alarm` is `stop`, or `last`
        is True.
        """
        healthy = rewind(self.out, iteration - back, self.modules, self.optimizers)
        # An interrupted run may have gone on instead of rewinding, with ppo.on_alarm=warn.
        drop_later(self.out, iteration)
        drop_later(self.out / HELDOUT, iteration + 1)
        no_rollbacks_left = self.position["rollbacks"] == self.config.rollbacks
        stops = no_rollbacks_left or self.config.on_alarm is Action.STOP
        ends = last or stops
        self.position = {
            "rollbacks": self.position["rollbacks"] + (not ends),
            "rewound": iteration + 1,
            "stopped": int(stops),
        } | self.best.position
        self._save(iteration)
        if ends:
            self.say(f"  stopped with the weights of {healthy.name}")
        else:
            self.say(f"  rewound to {healthy.name}, at half the learning rate")
        return ends

    def _is_evaluated(self, iteration: int) -> bool:
        last = iteration + 1 == self.config.iterations
        return last or (iteration + 1) % self.config.evaluate_every == 0

    def _judge(self, iterations: int) -> Metrics:
        return judge(iterations, self.evaluate, self.best, self.modules, self.say)

    def _save(self, iteration: int) -> None:
        save_checkpoint(
            *(self.out, iteration + 1, self.modules, self.optimizers, self.position, self.keep)
        )


def judge(
    iterations: int, evaluate: Collect | None, best: BestWeights, modules: Modules, say: Say
) -> Metrics:
    """Play the held-out tasks, save the weights if their reward is the best so far, and return the
    metrics.

    `iterations` is the number of finished iterations. Without `evaluate` nothing is played, and the
    result is empty.
    """
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
    """Return the mean reward of each task, one mapping for each iteration before `before`; delete
    the lines of later iterations."""
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
    """Run one PPO iteration: collect episodes and update actor and critic. Return the iteration's
    metrics."""
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


def describe(iteration: int, of: int, m: Metrics) -> str:
    """Return the metrics of one iteration as one line of text."""
    return (
        f"ppo {iteration + 1}/{of}: reward {m['reward']:+.2f} (correct {m['correct']:.0%}, "
        f"over compile {m['faster_than_compile']:.0%}), entropy {m['entropy']:.3f}, "
        f"ev {m['ev']:.2f}, cut {m['length_clipped']:.0%}, {m['seconds']:.1f} s"
    )
