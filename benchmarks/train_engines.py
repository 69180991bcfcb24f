"""Measure tokens per second of the in-process sampling engines on conversations of several turns.

    python benchmarks/train_engines.py --preset tiny                   # a dry run, on a CPU too
    python benchmarks/train_engines.py --preset h200 --out engines.json

Each conversation has a thread, like an episode, and samples through the `Batcher` of rollouts: in
common batches for the engine `local`, separately for `continuous`. All conversations start with the
same prompt. Tool results are random ids without delay. Turn lengths are drawn in advance, so both
engines sample the same number of tokens. A result is the median over rounds that alternate between
the engines; it includes the time to open the engine.
Not covered: judging in parallel, servers, the sampled text (the weights are random).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from slices import write
from train_throughput import PRESETS as DECODERS
from train_throughput import decoder

from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import Engine, LocalEngine, Request
from cuagent.training.policy.model import count_parameters
from cuagent.training.rollout.episode import Batcher

NEVER = -1
"""End-of-turn id that no token has, so that every turn reaches its requested length."""


@dataclass(frozen=True)
class Size:
    decoder: str
    """Name of the decoder: a preset of `train_throughput.py`."""
    conversations: int
    turns: int
    prompt: int
    """Number of tokens of the prompt, which all conversations share."""
    reply: int
    """Largest number of tokens of a turn; the smallest is a quarter of it."""
    observation: int
    """Number of tokens of each tool result."""
    rounds: int

    @property
    def context(self) -> int:
        return self.prompt + self.turns * (self.reply + self.observation)


PRESETS = {
    "tiny": Size("tiny", 4, 3, 64, 16, 32, 2),
    "h200": Size("h200", 48, 4, 1024, 128, 256, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    found = figures(PRESETS[options.preset], "cuda" if torch.cuda.is_available() else "cpu")
    print(json.dumps(found, indent=1))
    if options.out:
        write(options.out, found)


def figures(size: Size, device: str) -> dict[str, Any]:
    """Return, for each engine, sampled tokens per second, seconds of each round and peak memory."""
    import transformers

    shape = replace(DECODERS[size.decoder], tokens=size.context)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    # One model each: continuous batching changes the model's attention.
    one, other = (decoder(shape).to(device, dtype).eval() for _ in range(2))
    engines: dict[str, Engine] = {
        "local": LocalEngine(one, NEVER),
        "continuous": ContinuousEngine(other, NEVER, size.conversations * size.context),
    }
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "weights": count_parameters(one),
        "size": asdict(size),
        "sampled": sum(map(sum, (lengths(size, n) for n in range(size.conversations)))),
    }
    arms = {name: player(size, shape.vocabulary, engine) for name, engine in engines.items()}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(size.rounds + 1):
        for name, arm in arms.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            took = arm()
            print(f"{name}, round {number}: {took:.2f} s", flush=True)
            if number:  # the first warms up
                seconds[name].append(round(took, 3))
            if device == "cuda":
                peak = torch.cuda.max_memory_allocated() / 2**30
                found[f"{name}, peak GiB"] = round(peak, 2)
    for name, each in seconds.items():
        found[f"{name}, seconds"] = each
        found[f"{name}, tokens/s"] = round(found["sampled"] / statistics.median(each))
    found["continuous over local"] = round(
        found["continuous, tokens/s"] / found["local, tokens/s"], 3
    )
    return found


def lengths(size: Size, number: int) -> list[int]:
    """Return the number of tokens of each turn of conversation `number`."""
    rng = random.Random(number)
    return [rng.randint(max(1, size.reply // 4), size.reply) for _ in range(size.turns)]


def player(size: Size, vocabulary: int, engine: Engine) -> Callable[[], float]:
    """Return a function that plays all conversations once and returns the seconds that they
    took."""

    def ids(seed: int, count: int) -> tuple[int, ...]:
        rng = random.Random(seed)
        return tuple(rng.randrange(3, vocabulary) for _ in range(count))

    start = ids(0, size.prompt)

    def one(number: int, batcher: Batcher) -> None:
        context = start
        with batcher.live():
            for turn, most in enumerate(lengths(size, number)):
                seed = number * size.turns + turn
                context += batcher.sample(Request(context, most, seed)).ids
                context += ids(1 + seed, size.observation)

    def play_all() -> float:
        started = time.perf_counter()
        batcher = Batcher(engine, 1.0 if engine.needs_batches else 0.0)
        with engine.open(), ThreadPoolExecutor(size.conversations) as threads:
            for played in [threads.submit(one, n, batcher) for n in range(size.conversations)]:
                played.result()
        return time.perf_counter() - started

    return play_all


if __name__ == "__main__":
    main()
