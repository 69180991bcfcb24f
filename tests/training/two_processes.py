"""Run RFT and PPO on recorded episodes, replicated and sharded; test_parallel.py starts this script
by torchrun."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

from cuagent.training import parallel
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.data.segments import read_episodes
from cuagent.training.policy.model import (
    load_actor,
    new_actor,
    new_critic,
    save_model,
    small_config,
)
from cuagent.training.policy.optimize import AdamW
from cuagent.training.policy.placement import Placement, copy_weights, place, unshard

SMALL = 60
"""Number of tokens of a microbatch, small enough that every process has several microbatches, in
different numbers."""


def train(episodes_file: Path, out: Path, placement: Placement, device: str = "cpu") -> None:
    """Train by RFT and PPO and write to `out`; resume from checkpoints in `out`."""
    episodes = list(read_episodes(episodes_file))
    start = new_actor(small_config(16, 2, 32, 2, 64, 1, 0), 0)
    critic = place(new_critic(start), placement, device)
    actor = place(start, placement, device)
    rft(actor, episodes, [], RftConfig(3, 16, tokens_per_microbatch=SMALL), out / "rft", print)
    config = PpoConfig(
        iterations=2,
        minibatches=2,
        actor=AdamW(lr=1e-3),
        critic=AdamW(lr=1e-3),
        tokens_per_microbatch=SMALL,
        save_every=1,
    )
    ppo(actor, critic, lambda _: episodes, config, out / "ppo", print)
    weights = torch.cat(
        [unshard(p.detach()).flatten() for m in (actor, critic) for p in m.parameters()]
    )
    torch.save(weights.cpu(), out / f"weights-{parallel.rank()}.pt")
    save_model(actor, out / "model")
    replica = new_actor(actor.config, 1)
    copy_weights(actor, replica)
    saved = load_actor(out / "model").state_dict()
    assert all(torch.equal(saved[name], w) for name, w in replica.state_dict().items())


def main(episodes_file: Path, out: Path, device: str) -> None:
    torch.set_num_threads(1)
    own = parallel.start(device)
    train(episodes_file, out / "replicated", Placement(), own)
    train(episodes_file, out / "sharded", Placement(sharded=True, recompute=True), own)
    train(episodes_file, out / "started-by-one", Placement(sharded=True), own)
    assert parallel.gather_interleaved(parallel.local_share(list(range(7)))) == list(range(7))
    gc.collect()  # sharded models refer to the process group
    parallel.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
