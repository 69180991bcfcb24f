"""Play a game with tool output, for the tests of the training loops with a small policy.

The prompt names a number; the policy samples one token, reads noise, and samples another. The
reward is the number of sampled tokens that equal the number. The real engine samples the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cuagent.training.algorithms.ppo_update import PpoConfig
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.engines.engine import LocalEngine, Request
from cuagent.training.policy.model import new_actor, small_config
from cuagent.training.policy.optimize import AdamW

END, NUMBERS, NOISE = 1, range(4, 10), range(10, 16)


def small_actor(seed: int = 0) -> Any:
    return new_actor(small_config(16, 1, 32, 2, 64, END, 0), seed)


def play(actor: Any, episodes: int, seed: int) -> list[Episode]:
    """Play both turns of all episodes in batches; return the episodes."""
    engine = LocalEngine(actor, END)
    rng = np.random.default_rng(seed)
    asked = rng.choice(list(NUMBERS), episodes).tolist()
    prompts = [(2, number, 3) for number in asked]
    first = engine.sample([Request(p, 2, seed * 9973 + i) for i, p in enumerate(prompts)])
    noise = [tuple(rng.choice(list(NOISE), 3).tolist()) for _ in prompts]
    longer = [p + f.ids + n for p, f, n in zip(prompts, first, noise, strict=True)]
    second = engine.sample([Request(p, 2, seed * 9973 + 5000 + i) for i, p in enumerate(longer)])
    played = []
    for i, (p, f, n, s) in enumerate(zip(prompts, first, noise, second, strict=True)):
        right = (f.ids[0] == asked[i]) + (s.ids[0] == asked[i])
        played.append(
            Episode(
                f"{seed}-{i}",
                f"task{asked[i]}",
                f"task{asked[i]}",
                (
                    Segment(Kind.PROMPT, p),
                    Segment(Kind.ACTION, f.ids, f.logprobs),
                    Segment(Kind.OBSERVATION, n),
                    Segment(Kind.ACTION, s.ids, s.logprobs),
                    Segment(Kind.OBSERVATION, n),
                ),
                (-1.0, 1.0, 3.0)[right],
                "submitted",
            )
        )
    return played


def reward(actor: Any) -> float:
    return sum(e.reward for e in play(actor, 200, 777)) / 200


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


FAST = PpoConfig(
    iterations=20,
    minibatches=2,
    actor=AdamW(lr=3e-3),
    critic=AdamW(lr=6e-3),
    lam_actor=0.95,
    save_every=2,
)


def silent(_: str) -> None: ...
