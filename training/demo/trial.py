"""Run several seeds of the demonstration and compare the training methods (arms).

All seeds share the teacher's demonstrations, the tasks and one pool of judges with its cache; each
seed trains in its own process. Arms are paired: for each seed PPO and further RFT start from the
same policy and play the same number of episodes. The comparison is rewritten regularly, so it
survives an interrupt.
Not covered: one seed (`demo.py`), the statistics (`paired.py`).
Invariant: no seed computes on a GPU while a kernel is timed on it.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import cycle
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean
from typing import Any

from cuagent.device_lock import DeviceLock
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.demo.audit import audit
from cuagent.training.demo.budget import SECONDS
from cuagent.training.demo.demo import Demo, Say
from cuagent.training.demo.devices import lock_for, open_pool, training_devices
from cuagent.training.demo.paired import (
    best_of,
    difference,
    fast_share_by_task,
    mean_by_task,
    rewards_by_task,
)
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.demo.rehearsal import Rehearsal
from cuagent.training.demo.teacher import initial_files
from cuagent.training.files import write_atomic
from cuagent.training.judging.judge_process import exit_with_parent
from cuagent.training.judging.pool import JudgePool
from cuagent.training.judging.pool_server import PoolClient, serve_pool
from cuagent.training.manifest import fixed_settings, open_manifest
from cuagent.training.report import write_report, write_seeds_report

BEST_OF = 8
"""Largest k of the figure "best reward of k episodes". A task with fewer evaluation episodes uses
their number."""
ARMS = ("base", "rft", "ppo", "more")
POLL_S = 20.0
"""Seconds between two updates of the comparison."""

WriteSummary = Callable[[], None]
"""Function that writes the comparison of all stages finished so far to trial.json."""


def run_trial(
    config: DemoConfig, seeds: Sequence[int], device: str, out: Path, say: Say
) -> dict[str, Any]:
    """Train one policy for each seed; return the comparison of the arms, which is also written to
    `out/trial.json`.

    Stages that an earlier call finished are skipped. Raises RecordError if a seed failed (its log
    is `out/seed-N/log.txt`), and ConfigError if `out` has seeds of other settings.
    """
    open_seeds_manifest(out, config)
    raise_file_limit()
    started = time.time()
    with open_pool(config, out) as pool:
        demo = Demo(config, device, out, pool, out, say)
        train, heldout = demo.tasks()
        with demo.budget.stage("teacher"):  # includes opening the teacher's tasks
            demo.run_teacher(train, heldout)
        say(f"{pool.describe_cost()}; so far {demo.budget.summary()}")

        def write_summary() -> None:
            summary = {"rehearsal": config.rehearsal, **compare_arms(out, seeds)}
            write_atomic(out / "trial.json", json.dumps(summary, indent=1))

        with opened_in_background([*train, *heldout], pool), serve_pool(pool) as address:
            here = replace(config, minutes=minutes_left(config, started))
            arms = [(replace(here, seed=seed), out / f"seed-{seed}") for seed in seeds]
            train_seeds(
                address, arms, training_places(config, device, pool), out, say, write_summary
            )
        hits = f"{pool.cache_hits} from the cache"
        say(f"{pool.judged} kernels judged, {hits}; {pool.describe_cost()}")
    found = compare_arms(out, seeds)
    summary = summary_lines(found)
    for line in summary:
        say(line)
    say(f"curves: {write_seeds_report(out, [folder for _, folder in arms], summary)}")
    return found


def open_seeds_manifest(out: Path, config: DemoConfig) -> None:
    """Check the manifest of the trial's folder, or write it.

    A later call may add seeds and the arm of further RFT; all other settings must be equal. Raises
    ConfigError.
    """
    joins = ("seed",) if config.more_rounds else ("seed", "more_rounds")
    open_manifest(out, "demo --seeds", {}, fixed_settings(config, *joins))


def minutes_left(config: DemoConfig, started: float) -> float | None:
    """Return the minutes left until the time limit of a run that started at `started` (a
    time.time() value); None: no limit."""
    if config.minutes is None:
        return None
    return max(0.0, config.minutes - (time.time() - started) / 60)


Place = tuple[str, DeviceLock]
"""A device, and the lock to hold while training there."""


def training_places(config: DemoConfig, device: str, pool: JudgePool | Rehearsal) -> list[Place]:
    """Return the devices on which seeds train, each with its lock."""
    return [(place, lock_for(config, pool, place)) for place in training_devices(config, device)]


def train_seeds(
    address: str,
    arms: Sequence[tuple[DemoConfig, Path]],
    places: Sequence[Place],
    shared: Path,
    say: Say,
    write_summary: WriteSummary,
) -> None:
    """Train each (settings, folder) of `arms` in a process of its own, in parallel; call
    `write_summary` regularly.

    `places`: devices and locks, assigned to the processes in turn. Raises RecordError if a process
    failed.
    """
    context = multiprocessing.get_context("spawn")
    names = ", ".join(seed_name(folder, shared) for _, folder in arms)
    say(f"{names} train in parallel on {', '.join(name for name, _ in places)}")
    failed, running = list[Path](), dict[Any, tuple[Path, Any]]()
    for (one, folder), place in zip(arms, cycle(places), strict=False):
        process = context.Process(target=run_seed, args=(address, one, place, shared, folder))
        process.start()
        running[process.sentinel] = folder, process
    while running:
        for sentinel in wait(list(running), POLL_S):
            folder, process = running.pop(sentinel)
            process.join()
            failed += [folder] if process.exitcode else []
        write_summary()
    if failed:
        names = ", ".join(seed_name(folder, shared) for folder in failed)
        raise RecordError(f"{names} failed; see {failed[0] / 'log.txt'}")


def seed_name(folder: Path, shared: Path) -> str:
    """Return the path of a seed's folder relative to `shared`, such as `no-rft/seed-3`, as the
    seed's name."""
    return str(folder.relative_to(shared))


@contextmanager
def opened_in_background(tasks: Sequence[Task], pool: JudgePool | Rehearsal) -> Iterator[None]:
    """Open the tasks in a background thread inside this context; its end stops the thread."""
    stopping = threading.Event()
    # Errors are ignored: judging a task that could not be opened reports them again.
    with ThreadPoolExecutor(1) as background:
        background.submit(pool.open, tasks, stopping.is_set)
        try:
            yield
        finally:  # leave the remaining tasks unopened
            stopping.set()


def run_seed(address: str, config: DemoConfig, place: Place, shared: Path, out: Path) -> None:
    """Train one seed with settings `config` in the folder `out`. This is the main function of a
    child process."""
    import torch

    exit_with_parent()
    device, device_lock = place
    end = None if config.minutes is None else time.time() + 60 * config.minutes
    torch.set_num_threads(1)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    # "high" means TF32 on a GPU. PPO's importance weights correct the difference.
    torch.set_float32_matmul_precision("high")
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a", encoding="utf-8", buffering=1) as log:

        def say(text: str) -> None:
            log.write(text + "\n")
            print(f"[{seed_name(out, shared)}] {text}", flush=True)

        pool = PoolClient(address)
        demo = Demo(config, device, out, pool, shared, say, end, device_lock)
        demo.run()
        say(f"curves: {write_report(out)}")
        with ThreadPoolExecutor(1) as background:  # the audit needs judges, further RFT the GPU
            audited = background.submit(audit_last, demo, pool)
            if config.more_rounds:
                demo.run_further_rft()
            audited.result()
        say(f"where the time went: {demo.budget.summary()}")


def audit_last(demo: Demo, pool: PoolClient) -> None:
    """Judge the kernels of PPO's evaluation again, and write `audit.json`; do nothing if it
    exists."""
    path = demo.out / "audit.json"
    if path.exists() or not demo.config.audited:
        return
    effort = Effort.QUICK if demo.config.timed else None
    _, heldout = demo.tasks()
    with demo.budget.stage("audit"):
        found = audit(read_evaluation(demo.out, "ppo"), heldout, initial_files, pool, effort)
    write_atomic(path, json.dumps(asdict(found)))
    demo.say(f"judged again: {found}")


def compare_arms(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the mean reward of each arm and PPO's difference from each other arm, over the
    finished seeds.

    The result also has the seeds' episode counts, seconds and audits.
    """
    folders = [out / f"seed-{seed}" for seed in seeds]
    tables = {
        arm: {
            seed: rewards_by_task(found)
            for seed in seeds
            if (found := read_evaluation(out / f"seed-{seed}", arm))
        }
        for arm in ARMS
    }
    rewards = {arm: {s: mean_by_task(t) for s, t in of.items()} for arm, of in tables.items()}
    shares = {arm: {s: fast_share_by_task(t) for s, t in of.items()} for arm, of in tables.items()}
    played = [len(each) for t in tables["rft"].values() for each in t.values()]
    most = min([BEST_OF, *played])
    rewards[f"best of {most} of rft"] = {s: best_of(t, most) for s, t in tables["rft"].items()}

    def gap_of(arm: str, other: str, of: dict[str, Any]) -> dict[str, Any] | None:
        both = [seed for seed in of[arm] if seed in of[other]]
        if not both:
            return None
        gap = difference([of[arm][s] for s in both], [of[other][s] for s in both])
        return asdict(gap) | {"of_seeds": both}

    return {
        "seeds": list(seeds),
        "heldout_tasks": max((len(t) for t in tables["base"].values()), default=0),
        "reward": over_seeds(rewards),
        "faster_than_compile": over_seeds(shares),
        "ppo_less": {arm: gap_of("ppo", arm, rewards) for arm in rewards if arm != "ppo"},
        "rft_less_base": gap_of("rft", "base", rewards),
        "faster_ppo_less_rft": gap_of("ppo", "rft", shares),
        "episodes_judged": {
            "ppo": [count_episodes(folder, "value/sampled", "ppo") for folder in folders],
            "more": [count_episodes(folder, "more/*/sampled") for folder in folders],
        },
        "seconds": {"shared": seconds_of(out), **{f.name: seconds_of(f) for f in folders}},
        "audit": [
            json.loads(path.read_text(encoding="utf-8"))
            for folder in folders
            if (path := folder / "audit.json").exists()
        ],
    }


def count_episodes(folder: Path, *parts: str) -> int:
    """Return the number of episodes in parts of a seed's folder; `parts` are glob patterns."""
    paths = [path for part in parts for path in folder.glob(f"{part}/episodes/*.jsonl")]
    return sum(path.read_bytes().count(b"\n") for path in paths)


def seconds_of(folder: Path) -> dict[str, float]:
    """Return the wall time in seconds that each stage of a seed's folder has taken so far."""
    path = folder / SECONDS
    found: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def over_seeds(figures: dict[str, dict[int, dict[str, float]]]) -> dict[str, Any]:
    """Return for each arm: the mean over tasks of each finished seed, and the mean of these over
    seeds.

    `figures`: by arm, then seed, then task.
    """
    return {
        arm: {"mean": fmean(stopping), "seeds": stopping, "of_seeds": list(by_seed)}
        for arm, by_seed in figures.items()
        if by_seed
        for stopping in [[fmean(s.values()) for s in by_seed.values()]]
    }


def read_evaluation(folder: Path, arm: str) -> list[Episode]:
    """Return the episodes of an arm's held-out evaluation in a seed's folder; empty if it is not
    finished."""
    path = folder / arm / "evaluation" / "episodes" / "00000.jsonl"
    return list(read_episodes(path)) if (folder / arm / "evaluation.json").exists() else []


def summary_lines(found: dict[str, Any]) -> list[str]:
    """Return the comparison of the arms as lines of text."""
    summary = [
        f"{arm}: reward {m['mean']:+.2f} ({', '.join(f'{s:+.2f}' for s in m['seeds'])})"
        for arm, m in found["reward"].items()
    ]
    for arm, m in found["faster_than_compile"].items():
        summary.append(f"{arm}: faster than torch.compile {m['mean']:.0%}")
    for arm, d in found["ppo_less"].items():
        if d is not None:
            summary.append(f"ppo minus {arm}: {d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]")
    for a in found["audit"]:
        summary.append(
            f"judged again: {a['accepted']} of {a['kernels']} kernels accepted, reward "
            f"{a['reward_before']:+.2f} then, {a['reward_again']:+.2f} now"
        )
    return summary


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: every waiting episode holds a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
