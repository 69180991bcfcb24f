"""Run the arms of docs/research/ablations.md. Each arm leaves out one part of the method or
replaces it by a wrong one.

Each arm is compared with the full method, seed by seed, in a folder that `cuagent train demo
--seeds` filled. Stages that an arm does not change are copied from the full method's run of the
same seed, so that arms differ in the named part only. Tasks, demonstrations and judgements are
shared.
Not covered: the declared end points and expectations (docs/research/ablations.md); the training
loops.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cuagent.training.algorithms.metrics import episode_metrics, read_metrics
from cuagent.training.config import ConfigError, configure
from cuagent.training.demo.demo import Demo, Say
from cuagent.training.demo.devices import open_pool
from cuagent.training.demo.paired import difference, mean_by_task, rewards_by_task
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.trial import (
    minutes_left,
    open_seeds_manifest,
    opened_in_background,
    raise_file_limit,
    read_evaluation,
    train_seeds,
    training_places,
)
from cuagent.training.files import write_atomic
from cuagent.training.judging.pool_server import serve_pool


@dataclass(frozen=True)
class Ablation:
    """One arm: its changed settings (`sets`) and the last stage (`after`) that it copies from the
    full method."""

    sets: tuple[str, ...]
    after: str


STAGES = ("base", "rft", "value")
ABLATIONS = {
    "no-rft": Ablation(("rft.steps=0",), "base"),
    "no-value": Ablation(("value.steps=0",), "rft"),
    "ratio": Ablation(("ppo.reward=ratio", "value.reward=ratio"), "rft"),
    # With one turn a policy cannot submit after a verdict, so the filter would drop all episodes.
    "one-turn": Ablation(("turns=1", "filters.submitted=false"), "base"),
    "naive-gae": Ablation(("ppo.naive_gae=true",), "value"),
}


def run_ablations(
    names: Sequence[str],
    config: DemoConfig,
    seeds: Sequence[int],
    device: str,
    full: Path,
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Run each arm for each seed in `full/NAME/seed-N`, in parallel on one pool of judges; return
    the comparisons by arm.

    Each arm's `trial.json` compares the arm with the full method, and is rewritten as seeds finish.
    PPO makes as many iterations as the full method made for the seed, or fewer if `config.minutes`
    run out. Finished stages are skipped. Raises ConfigError if an arm is unknown or a seed of the
    full method is not finished.
    """
    for name in names:
        if name not in ABLATIONS:
            raise ConfigError(f"--ablation {name}: there are {', '.join(ABLATIONS)}")
    started = time.time()
    absent = [s for s in seeds if not read_evaluation(full / f"seed-{s}", "ppo")]
    if absent:
        raise ConfigError(f"no finished seed {absent[0]} in {full}; run it with --seeds first")
    open_seeds_manifest(full, config)

    def write_summary() -> None:
        for name in names:
            summary = {"rehearsal": config.rehearsal, **compare_with_full(full, full / name, seeds)}
            write_atomic(full / name / "trial.json", json.dumps(summary, indent=1))

    raise_file_limit()
    with open_pool(config, full) as pool, serve_pool(pool) as address:
        train, heldout = Demo(config, device, full, pool, full, say).tasks()
        with opened_in_background([*train, *heldout], pool):
            arms = arms_of(
                names, replace(config, minutes=minutes_left(config, started)), seeds, full
            )
            train_seeds(
                address, arms, training_places(config, device, pool), full, say, write_summary
            )
    found = {name: compare_with_full(full, full / name, seeds) for name in names}
    for name in names:
        say(describe(name, found[name]))
    return found


def arms_of(
    names: Sequence[str], config: DemoConfig, seeds: Sequence[int], full: Path
) -> list[tuple[DemoConfig, Path]]:
    """Return (settings, folder) for every seed of every arm; copy the stages shared with the full
    method into the folders."""
    found = []
    for name in names:
        for seed in seeds:
            full_seed, arm_seed = full / f"seed-{seed}", full / name / f"seed-{seed}"
            copy_stages(full_seed, arm_seed, ABLATIONS[name].after)
            iterations = f"ppo.iterations={len(ppo_metrics(full_seed))}"
            # The ablations count collapses, so no rollback may undo one.
            common = [f"seed={seed}", iterations, "ppo.on_alarm=warn"]
            sets = [*ABLATIONS[name].sets, *common, "more_rounds=0", "audited=false"]
            found.append((configure(config, None, sets), arm_seed))
    return found


def copy_stages(full: Path, arm_seed: Path, last: str) -> None:
    """Copy the folders of the stages up to and including `last` from `full` to `arm_seed`, unless
    they exist there."""
    arm_seed.mkdir(parents=True, exist_ok=True)
    for stage in STAGES[: STAGES.index(last) + 1]:
        if not (arm_seed / stage).exists():
            partial = arm_seed / f"{stage}.partial"
            shutil.copytree(full / stage, partial, dirs_exist_ok=True)
            partial.rename(arm_seed / stage)


def ppo_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of each PPO iteration of a seed; empty if there are none."""
    path = folder / "ppo" / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def compare_with_full(full: Path, out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Compare an arm with the full method over the seeds that the arm finished.

    Return the mean difference of held-out rewards (arm minus full) and the figures of `end_points`
    for each seed.
    """
    done = [seed for seed in seeds if read_evaluation(out / f"seed-{seed}", "ppo")]
    if not done:
        return {"seeds": []}
    folders = {"full": [full / f"seed-{s}" for s in done], "arm": [out / f"seed-{s}" for s in done]}
    rewards = {
        arm: [mean_by_task(rewards_by_task(read_evaluation(folder, "ppo"))) for folder in each]
        for arm, each in folders.items()
    }
    # An arm that ran out of minutes made fewer iterations; compare areas over the common ones.
    both = [min(map(len, map(ppo_metrics, pair))) for pair in zip(*folders.values(), strict=True)]
    return {
        "seeds": done,
        "arm_less_full": asdict(difference(rewards["arm"], rewards["full"])),
        **{arm: list(map(end_points, each, both)) for arm, each in folders.items()},
    }


def end_points(folder: Path, both: int) -> dict[str, Any]:
    """Return the figures by which arms are compared, for one seed: held-out reward after PPO, and
    figures of the PPO iterations.

    `area` is the mean training reward over the first `both` iterations.
    """
    rows = ppo_metrics(folder)
    last = episode_metrics(read_evaluation(folder, "ppo"))
    rewards = [row["reward"] for row in rows]
    return {
        "iterations": len(rows),
        "reward": last["reward"],
        "faster_than_compile": last["faster_than_compile"],
        "area": fmean(rewards[:both]),
        "length_clipped": [row["length_clipped"] for row in rows],
        "ev": [row["ev"] for row in rows],
        "collapsed": collapsed(rewards, [row["length_clipped"] for row in rows]),
    }


def collapsed(rewards: Sequence[float], clipped: Sequence[float]) -> bool:
    """Return True if a PPO run collapsed; `rewards`, `clipped`: one entry per iteration.

    A run collapsed if the mean reward of five consecutive iterations is more than 1 below the best
    earlier reward, or if more than a quarter of an iteration's episodes were cut by length.
    """
    fell = any(
        fmean(rewards[at : at + 5]) < max(rewards[:at]) - 1 for at in range(1, len(rewards) - 4)
    )
    return fell or max(clipped) > 0.25


def describe(name: str, found: dict[str, Any]) -> str:
    """Return the comparison of one arm as one line of text."""
    if not found["seeds"]:
        return f"{name}: no seed has finished"
    d = found["arm_less_full"]
    low, high = (d["low"], d["high"]) if d.get("t_low") is None else (d["t_low"], d["t_high"])
    summary = f"{name} minus full: {d['mean']:+.2f} [{low:+.2f}, {high:+.2f}]"
    area = {arm: fmean(end["area"] for end in found[arm]) for arm in ("full", "arm")}
    fell = sum(end["collapsed"] for end in found["arm"])
    made = {arm: sum(end["iterations"] for end in found[arm]) for arm in ("full", "arm")}
    return (
        f"{summary} after {made['arm']} iterations, {made['full']} in full; mean training reward "
        f"{area['arm']:+.2f}, {area['full']:+.2f} in full; "
        f"{fell} of {len(found['arm'])} collapsed"
    )
