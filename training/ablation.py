"""One thing left out or done wrongly, and what comes of it: the arms of docs/ABLATIONS.md.

For: comparing with the full way, seed by seed, on what `--seeds` left in a folder. The stages that
an arm does not change are copied from the full arm of its seed, so that arms differ in the one
thing named; tasks, demonstrations and judgements are shared.
Not covered: what was declared to be looked at, and expected (the page); the loops themselves.
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

from cuagent.training.config import ConfigError, configure
from cuagent.training.demo import Demo, Say, open_pool
from cuagent.training.files import write_atomic
from cuagent.training.metrics import episode_metrics, read_metrics
from cuagent.training.paired import difference, mean_by_task, rewards_by_task
from cuagent.training.pool_server import serve_pool
from cuagent.training.presets import DemoConfig
from cuagent.training.trial import (
    minutes_left,
    open_seeds_manifest,
    opened_in_background,
    raise_file_limit,
    read_evaluation,
    train_seeds,
    training_places,
)


@dataclass(frozen=True)
class Ablation:
    """An arm: what it sets, and the last stage that it has in common with the full one."""

    sets: tuple[str, ...]
    after: str


STAGES = ("base", "rft", "value")
ABLATIONS = {
    "no-rft": Ablation(("rft.steps=0",), "base"),
    "no-value": Ablation(("value.steps=0",), "rft"),
    "ratio": Ablation(("ppo.reward=ratio", "value.reward=ratio"), "rft"),
    # Who has one turn cannot submit after it has seen a verdict, and RFT would imitate nothing.
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
    """Each arm for each seed in `full/NAME/seed-N`, all beside each other on one pool of judges,
    and each compared with the full arm in its `trial.json`, which follows.

    PPO makes as many iterations as in the full arm of its seed, or as fit in the minutes. What is
    there is not redone.
    Raises ConfigError where there is no such arm, or no full one of the same settings.
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
    """Settings and folder of every seed of every arm, with the stages that it takes over."""
    found = []
    for name in names:
        for seed in seeds:
            full_seed, arm_seed = full / f"seed-{seed}", full / name / f"seed-{seed}"
            copy_stages(full_seed, arm_seed, ABLATIONS[name].after)
            iterations = f"ppo.iterations={len(ppo_metrics(full_seed))}"
            # A collapse is what is looked for, so none is taken back.
            besides = [f"seed={seed}", iterations, "ppo.on_alarm=warn"]
            sets = [*ABLATIONS[name].sets, *besides, "more_rounds=0", "audited=false"]
            found.append((configure(config, None, sets), arm_seed))
    return found


def copy_stages(full: Path, arm_seed: Path, last: str) -> None:
    """Copy the stages up to `last`, each whole or not at all, where they are not there yet."""
    arm_seed.mkdir(parents=True, exist_ok=True)
    for stage in STAGES[: STAGES.index(last) + 1]:
        if not (arm_seed / stage).exists():
            started = arm_seed / f"{stage}.partial"
            shutil.copytree(full / stage, started, dirs_exist_ok=True)
            started.rename(arm_seed / stage)


def ppo_metrics(folder: Path) -> list[dict[str, Any]]:
    """What PPO's iterations of a seed were like; none where it has made none."""
    path = folder / "ppo" / "metrics.jsonl"
    return read_metrics(path) if path.exists() else []


def compare_with_full(full: Path, out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """The end points, for the arm and for the full one, over the seeds that are through."""
    done = [seed for seed in seeds if read_evaluation(out / f"seed-{seed}", "ppo")]
    if not done:
        return {"seeds": []}
    folders = {"full": [full / f"seed-{s}" for s in done], "arm": [out / f"seed-{s}" for s in done]}
    rewards = {
        arm: [mean_by_task(rewards_by_task(read_evaluation(folder, "ppo"))) for folder in each]
        for arm, each in folders.items()
    }
    # An arm that ran out of minutes made fewer: areas are those of what both made.
    both = [min(map(len, map(ppo_metrics, pair))) for pair in zip(*folders.values(), strict=True)]
    return {
        "seeds": done,
        "arm_less_full": asdict(difference(rewards["arm"], rewards["full"])),
        **{arm: list(map(end_points, each, both)) for arm, each in folders.items()},
    }


def end_points(folder: Path, both: int) -> dict[str, Any]:
    """Of one seed: on held-out tasks after PPO, over its iterations, and over the first `both`."""
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
    """As declared: five iterations in a row whose mean is more than 1 under the best before them,
    or a quarter of the episodes cut by length."""
    fell = any(
        fmean(rewards[at : at + 5]) < max(rewards[:at]) - 1 for at in range(1, len(rewards) - 4)
    )
    return fell or max(clipped) > 0.25


def describe(name: str, found: dict[str, Any]) -> str:
    """One line for a person."""
    if not found["seeds"]:
        return f"{name}: no seed came to its end"
    d = found["arm_less_full"]
    summary = f"{name} less full: {d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]"
    area = {arm: fmean(end["area"] for end in found[arm]) for arm in ("full", "arm")}
    fell = sum(end["collapsed"] for end in found["arm"])
    made = {arm: sum(end["iterations"] for end in found[arm]) for arm in ("full", "arm")}
    return (
        f"{summary} after {made['arm']} iterations, {made['full']} in full; mean training reward "
        f"{area['arm']:+.2f}, {area['full']:+.2f} in full; "
        f"{fell} of {len(found['arm'])} collapsed"
    )
