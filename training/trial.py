"""Several seeds of the demonstration beside each other, and what they say together.

For: a result of record. All seeds share the teacher's demonstrations, the tasks and one pool of
judges, which remembers for all; each trains in a process of its own. Arms are paired: PPO and
further RFT start from the same policy of the same seed and may judge as many episodes.
Not covered: one seed (`demo.py`), the statistics (`paired.py`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cuagent.measure.timing import Effort
from cuagent.task import Task
from cuagent.training.audit import audit
from cuagent.training.demo import Demo, Say, cores_of, judges
from cuagent.training.gym import chain_of
from cuagent.training.lend import Borrowed, lend
from cuagent.training.paired import best_of, difference, fast, means, table
from cuagent.training.pool import JudgePool
from cuagent.training.presets import DemoConfig
from cuagent.training.segments import Episode, RecordError, read_episodes
from cuagent.training.teacher import Habits, Teacher, given

BEST_OF = 8
ARMS = ("base", "rft", "ppo", "more")


def run_trial(
    config: DemoConfig, seeds: Sequence[int], device: str, out: Path, say: Say
) -> dict[str, Any]:
    """All seeds and their comparison, written to `out/trial.json`; what is there is not redone.

    Raises RecordError where a seed failed; its own words are in `out/seed-N/log.txt`.
    """
    allow_files()
    with judges(config, out) as pool:
        demo = Demo(config, device, out, pool, out, say)
        train, heldout = demo.tasks()
        demo.taught(train, heldout)
        say(f"seeds {', '.join(map(str, seeds))} train beside each other")
        with opening((*train, *heldout), pool), lend(pool) as address:
            context = multiprocessing.get_context("spawn")
            started = [
                context.Process(
                    target=one_seed, args=(address, replace(config, seed=seed), device, out)
                )
                for seed in seeds
            ]
            for process in started:
                process.start()
            for process in started:
                process.join()
        say(f"{pool.judged} kernels judged, {pool.remembered} remembered")
        failed = [s for s, p in zip(seeds, started, strict=True) if p.exitcode]
        if failed:
            raise RecordError(f"seed {failed[0]} failed; see {out}/seed-{failed[0]}/log.txt")
        found = compared(out, seeds)
    (out / "trial.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    for line in lines(found):
        say(line)
    return found


@contextmanager
def opening(tasks: Sequence[Task], pool: JudgePool) -> Iterator[None]:
    """Have every task judged once while something else goes on: that opens it, which takes long."""
    flawless = Habits(0, 0, 0, 0, 0)
    with ThreadPoolExecutor(len(tasks)) as threads:
        for task in tasks:
            teacher = Teacher(task.device, chain_of(task), 0, flawless)
            threads.submit(pool.judge, task, teacher.attempt(given(task)))
        yield


def one_seed(address: str, config: DemoConfig, device: str, shared: Path) -> None:
    """A seed's process."""
    import torch

    spare = os.sched_getaffinity(0) - set(cores_of(config))
    if spare:  # the others belong to the judges
        os.sched_setaffinity(0, spare)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # on a GPU TF32: what differs, PPO weighs
    out = shared / f"seed-{config.seed}"
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a", encoding="utf-8", buffering=1) as log:

        def say(text: str) -> None:
            log.write(text + "\n")
            print(f"[{config.seed}] {text}", flush=True)

        pool = Borrowed(address)
        demo = Demo(config, device, out, pool, shared, say)
        demo.run()
        if not (out / "audit.json").exists():
            effort = Effort.QUICK if config.timed else None
            _, heldout = demo.tasks()
            found = audit(evaluated(shared, config.seed, "ppo"), heldout, given, pool, effort)
            (out / "audit.json").write_text(json.dumps(asdict(found)), encoding="utf-8")
            say(f"judged afresh: {found}")
        if config.more_rounds:
            demo.further()


def compared(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Mean rewards of the arms, and PPO less each of them."""
    arms = [a for a in ARMS if all(evaluated(out, seed, a) for seed in seeds)]
    tables = {arm: [table(evaluated(out, seed, arm)) for seed in seeds] for arm in arms}
    rewards = {arm: [means(t) for t in each] for arm, each in tables.items()}
    shares = {arm: [fast(t) for t in each] for arm, each in tables.items()}
    rewards[f"best of {BEST_OF} of rft"] = [best_of(t, BEST_OF) for t in tables["rft"]]
    ppo = rewards["ppo"]
    return {
        "seeds": list(seeds),
        "heldout_tasks": len(ppo[0]),
        "reward": {
            arm: {"mean": fmean(over), "seeds": over}
            for arm, each in rewards.items()
            for over in [[fmean(s.values()) for s in each]]
        },
        "faster_than_compile": {
            arm: {"mean": fmean(over), "seeds": over}
            for arm, each in shares.items()
            for over in [[fmean(s.values()) for s in each]]
        },
        "ppo_less": {
            arm: asdict(difference(ppo, each)) for arm, each in rewards.items() if arm != "ppo"
        },
        "rft_less_base": asdict(difference(rewards["rft"], rewards["base"])),
        "faster_ppo_less_rft": asdict(difference(shares["ppo"], shares["rft"])),
        "audit": [
            json.loads((out / f"seed-{seed}" / "audit.json").read_text(encoding="utf-8"))
            for seed in seeds
        ],
    }


def evaluated(out: Path, seed: int, arm: str) -> list[Episode]:
    """Episodes of an arm's evaluation; none where it was not played."""
    path = out / f"seed-{seed}" / arm / "evaluation" / "episodes" / "00000.jsonl"
    return list(read_episodes(path)) if path.exists() else []


def lines(found: dict[str, Any]) -> list[str]:
    """The comparison for a person."""
    said = [
        f"{arm}: reward {m['mean']:+.2f} ({', '.join(f'{s:+.2f}' for s in m['seeds'])})"
        for arm, m in found["reward"].items()
    ]
    for arm, m in found["faster_than_compile"].items():
        said.append(f"{arm}: faster than torch.compile {m['mean']:.0%}")
    for arm, d in found["ppo_less"].items():
        said.append(f"ppo less {arm}: {d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]")
    for a in found["audit"]:
        said.append(
            f"judged afresh: {a['accepted']} of {a['kernels']} kernels accepted, reward "
            f"{a['reward_before']:+.2f} then, {a['reward_again']:+.2f} now"
        )
    return said


def allow_files() -> None:
    """As many open files as the system lets us have: every waiting episode holds a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
