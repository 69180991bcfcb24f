"""Measure the worth of parts of the method on a small simulated game, over many seeds.

    python benchmarks/small_ppo.py --seeds 10 --out small.json    # minutes of one core; resumes
    python benchmarks/small_ppo.py --summary small.json

The game tests credit assignment. The prompt names a number, an episode has three turns, and each
turn should begin with the number. After each turn come `NOISE_TOKENS` meaningless tokens of a tool.
The reward is terminal: 3 for three right turns, 1 for two, else -1. Everything except the game is
the real code: engine, RFT, value pretraining, PPO. No kernel is written, so the figures do not hold
for kernels. Arms of a seed start from the same policy after RFT and play the same held-out
episodes. A seed whose base policy does not learn to copy the number (held-out reward below 0) is
counted and left out before its arms are played. Intervals are t-intervals over seeds of paired
differences. The settings were chosen on seeds 100 and 101.
Not covered: the demonstration with real verdicts (`cuagent train demo`).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.algorithms.value import ValueConfig, pretrain_value
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.engine import LocalEngine, Request
from cuagent.training.policy.model import new_actor, new_critic, small_config
from cuagent.training.policy.optimize import AdamW

END, NUMBERS, NOISE = 1, range(4, 10), range(10, 16)
TURNS, NOISE_TOKENS = 3, 12
EPISODES, ITERATIONS, HELDOUT = 48, 15, 240
PPO = PpoConfig(
    iterations=ITERATIONS,
    minibatches=2,
    actor=AdamW(1e-3, warmup=3),
    critic=AdamW(2e-3),
    lam_critic=1.0,
    save_every=1000,
)
ARMS: dict[str, PpoConfig] = {
    "full": PPO,
    "no value pretraining": PPO,
    "tool tokens as steps": replace(PPO, naive_gae=True),
    "lambda 1": replace(PPO, lam_actor=1.0),
    "lambda by length": replace(PPO, lam_actor=None),
}
T95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093}
"""97.5 % quantiles of Student's t distribution (for a 95 % interval), by degrees of freedom."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path, help="only print the table of a file")
    options = parser.parse_args()
    if options.summary:
        print("\n".join(summary(json.loads(options.summary.read_text(encoding="utf-8")))))
        return
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    for seed in range(options.seeds):
        if str(seed) not in found:
            found[str(seed)] = run_seed(seed)
            print(seed, json.dumps(found[str(seed)]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(found)))


def run_seed(seed: int) -> dict[str, Any]:
    """Train the base policy, RFT and all arms for one seed; return the figures by stage or arm.

    The figure of base and RFT is the held-out reward. The figures of an arm are the held-out reward
    after PPO (`heldout`), the mean training reward over the iterations (`area`), and the critic's
    explained variance at the start (`ev`).
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        actor = new_actor(small_config(16, 1, 32, 2, 128, END, 0), seed)
        base = RftConfig(300, 32, AdamW(5e-3, warmup=10), seed=seed, save_every=1000)
        rft(actor, demonstrations(256, seed), [], base, out / "base", silent)
        found: dict[str, Any] = {"base": reward(actor)}
        if found["base"] < 0:
            return found
        good = [e for e in play(actor, 192, 1_000_000 + seed) if e.reward > 0]
        tuned = replace(base, steps=15)
        rft(actor, good, [], tuned, out / "rft", silent)
        found["rft"] = reward(actor)
        critic = new_critic(actor)
        value = ValueConfig(100, 64, AdamW(5e-3, warmup=5), seed=seed, save_every=1000)
        seen = play(actor, 256, 2_000_000 + seed)
        pretrain_value(critic, seen, [], value, out / "value", silent)
        for name, config in ARMS.items():
            policy = copy.deepcopy(actor)
            values = new_critic(policy) if name == "no value pretraining" else copy.deepcopy(critic)

            def collect(iteration: int, policy: Any = policy) -> Sequence[Episode]:
                return play(policy, EPISODES, 10_000 * (seed + 1) + iteration)

            history = ppo(policy, values, collect, replace(config, seed=seed), out / name, silent)
            found[name] = {
                "heldout": reward(policy),
                "area": fmean(m["reward"] for m in history),
                "ev": history[0]["ev"],
            }
        return found


def demonstrations(count: int, seed: int) -> list[Episode]:
    """Return `count` episodes of a teacher that writes the prompt's number with probability 1/2 in
    each turn, and a random number otherwise."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        number = int(rng.choice(list(NUMBERS)))
        turns = [
            (number if rng.random() < 0.5 else int(rng.choice(list(NUMBERS))), END)
            for _ in range(TURNS)
        ]
        noise = rng.choice(list(NOISE), (TURNS, NOISE_TOKENS)).tolist()
        found.append(episode(f"demo-{i}", number, turns, [(-1.0, -1.0)] * TURNS, noise))
    return found


def play(actor: Any, episodes: int, seed: int) -> list[Episode]:
    """Play `episodes` episodes of the game with the policy, in one batch; return them."""
    was_training = actor.training
    actor.eval()
    engine, rng = LocalEngine(actor, END), np.random.default_rng(seed)
    numbers = rng.choice(list(NUMBERS), episodes).tolist()
    noise = rng.choice(list(NOISE), (episodes, TURNS, NOISE_TOKENS)).tolist()
    contexts = [(2, n, 3) for n in numbers]
    ids: list[list[tuple[int, ...]]] = [[] for _ in numbers]
    logprobs: list[list[tuple[float, ...]]] = [[] for _ in numbers]
    for turn in range(TURNS):
        asked = [Request(c, 2, (seed * 7 + turn) * 9973 + i) for i, c in enumerate(contexts)]
        for i, sampled in enumerate(engine.sample(asked)):
            ids[i].append(sampled.ids)
            logprobs[i].append(sampled.logprobs)
            contexts[i] = (*contexts[i], *sampled.ids, *noise[i][turn])
    actor.train(was_training)
    return [episode(f"{seed}-{i}", n, ids[i], logprobs[i], noise[i]) for i, n in enumerate(numbers)]


def episode(
    name: str,
    number: int,
    turns: Sequence[tuple[int, ...]],
    logprobs: Sequence[tuple[float, ...]],
    noise: Sequence[Sequence[int]],
) -> Episode:
    """Return one episode of the game with its tokens and its reward."""
    segments = [Segment(Kind.PROMPT, (2, number, 3))]
    for ids, logps, tool in zip(turns, logprobs, noise, strict=True):
        segments += [Segment(Kind.ACTION, ids, logps), Segment(Kind.OBSERVATION, tuple(tool))]
    right = sum(ids[0] == number for ids in turns)
    earned = {3: 3.0, 2: 1.0}.get(right, -1.0)
    return Episode(name, f"t{number}", f"t{number}", tuple(segments), earned, "submitted")


def reward(actor: Any) -> float:
    """Return the policy's mean reward over the held-out episodes, in which all policies get the
    same numbers."""
    return fmean(e.reward for e in play(actor, HELDOUT, 777_777))


def summary(found: dict[str, Any]) -> list[str]:
    """Return the lines of the summary table."""
    seeds = [found[key] for key in sorted(found, key=int) if "rft" in found[key]]
    if not seeds:
        return [f"none of {len(found)} seeds has a base that copies"]
    mean = {name: fmean(s[name] for s in seeds) for name in ("base", "rft")}
    start = f"held out: base {mean['base']:+.2f}, RFT {mean['rft']:+.2f}"
    lines = [f"{len(seeds)} of {len(found)} seeds; {start}"]
    gained = interval([s["full"]["heldout"] - s["rft"] for s in seeds])
    lines.append(f"full less RFT: {gained}")
    for name in ARMS:
        figures = ", ".join(
            f"{key} {fmean(s[name][key] for s in seeds):+.2f}" for key in ("heldout", "area", "ev")
        )
        gaps = ""
        if name != "full":
            held, area = (
                interval([s[name][key] - s["full"][key] for s in seeds])
                for key in ("heldout", "area")
            )
            gaps = f"; less full: held out {held}, area {area}"
        lines.append(f"{name}: {figures}{gaps}")
    return lines


def interval(gaps: Sequence[float]) -> str:
    """Return the mean and the 95 % t-interval of `gaps` (one per seed) as text."""
    if len(gaps) - 1 not in T95:
        return f"{fmean(gaps):+.2f}"
    half = T95[len(gaps) - 1] * stdev(gaps) / math.sqrt(len(gaps))
    return f"{fmean(gaps):+.2f} [{fmean(gaps) - half:+.2f}, {fmean(gaps) + half:+.2f}]"


def silent(_: str) -> None: ...


if __name__ == "__main__":
    main()
