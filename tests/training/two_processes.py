"""Run by torchrun in test_parallel.py: one PPO run on recorded episodes, RFT before it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from cuagent.training import parallel
from cuagent.training.model import new_actor, new_critic, small_config
from cuagent.training.optimize import AdamW
from cuagent.training.ppo import PpoConfig, ppo
from cuagent.training.rft import RftConfig, rft
from cuagent.training.segments import read_episodes


def train(episodes_file: Path, out: Path) -> None:
    torch.set_num_threads(1)
    parallel.start("cpu")
    episodes = list(read_episodes(episodes_file))
    actor = new_actor(small_config(16, 1, 32, 2, 64, 1, 0), 0)
    critic = new_critic(actor)
    small = 60  # tokens of a microbatch, so that every process has several
    rft(actor, episodes, [], RftConfig(3, 16, tokens_per_microbatch=small), out / "rft")
    config = PpoConfig(
        iterations=2,
        minibatches=2,
        actor=AdamW(lr=1e-3),
        critic=AdamW(lr=1e-3),
        tokens_per_microbatch=small,
    )
    ppo(actor, critic, lambda _: episodes, config, out / "ppo")
    assert parallel.together(parallel.mine(list(range(7)))) == list(range(7))
    weights = torch.cat([p.detach().flatten() for m in (actor, critic) for p in m.parameters()])
    torch.save(weights, out / f"weights-{parallel.rank()}.pt")
    parallel.stop()


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]))
