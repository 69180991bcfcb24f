"""Measure tokens per second of RFT and PPO updates on padded and on packed rows.

    python benchmarks/train_packing.py --preset tiny                    # a dry run
    python benchmarks/train_packing.py --preset cpu --out packing.json
    CUDA_VISIBLE_DEVICES=0 python benchmarks/train_packing.py --preset h200 --out packing.json

Both arms make the same update, which is checked first: losses agree within rounding. The arms
alternate. The result is the median ratio of a padded step's time to that of the packed step after
it, with the extremes: on a busy machine this ratio varies less than the tokens per second. Padded
rows are grouped by length already, so the gain depends on the lengths: "wide" is log-uniform over a
factor of 16 (episodes of one turn to forty), "narrow" is uniform from a quarter to the whole.
Not covered: TRL (`train_throughput.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from train_throughput import Size, decoder, episodes, ours, ours_ppo

from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.data.batch import collate, microbatches, packed_microbatches
from cuagent.training.data.segments import Episode
from cuagent.training.policy.model import device_microbatches, logprobs_of
from cuagent.training.policy.placement import Dtype, Placement, place

PRESETS = {
    "tiny": Size(2, 64, 2, 512, 8, 96, 4, 1, 2),
    "cpu": Size(2, 64, 2, 512, 16, 512, 4, 1, 5),
    "h200": Size(16, 1024, 16, 32768, 24, 4096, 4, 1, 2),
}
LENGTHS = ("wide", "narrow")
STAGES = {"rft": ours, "ppo": ours_ppo}
AGREES = {"cpu": 1e-5, "cuda": 2e-2}
"""Largest accepted relative difference of the losses, by device: rounding of fp32 (CPU) or bf16
(CUDA)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)  # more threads would wait for other processes
    size = PRESETS[options.preset]
    found: dict[str, Any] = {}
    for found in figures(size, device, options.lengths, options.stages):
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def figures(
    size: Size, device: str, lengths: Sequence[str], stages: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Run the measurements; print each one, and yield all results so far after each."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "size": asdict(size),
    }
    compute = Dtype.FP32 if device == "cpu" else Dtype.BF16
    arms = {
        name: Placement(compute=compute, packed=name == "packed") for name in ("padded", "packed")
    }
    for name in lengths:
        rows = wide(size) if name == "wide" else episodes(size, 0.25)
        losses = [loss_of(size, rows, placement, device) for placement in arms.values()]
        if abs(losses[0] - losses[1]) > AGREES[device] * abs(losses[0]):
            raise SystemExit(f"{name}: the losses differ: {losses}")
        found[name] = {"losses": losses, **padding(rows, size)}
        for stage in stages:
            step = STAGES[stage]
            steps = {arm: step(size, rows, placement, device) for arm, placement in arms.items()}
            measured = compare(stage, steps, sum(e.tokens for e in rows), size.rounds)
            found[name] |= measured
            print(f"{name}: {json.dumps(measured)}", flush=True)
            yield found


def wide(size: Size) -> list[Episode]:
    """Return episodes whose lengths in tokens are log-uniform over a factor of 16."""
    found: list[Episode] = []
    for i in range(size.rows):
        longest = int(size.tokens * 16 ** (i / (size.rows - 1) - 1))
        found += [
            replace(e, id=f"e{i}") for e in episodes(replace(size, rows=1, tokens=longest), 1)
        ]
    return found


def padding(rows: list[Episode], size: Size) -> dict[str, float]:
    """Return the number of forward passes of each arm, and the share of padding tokens in the
    padded passes."""
    real = collate(rows).real.sum(1)
    budget = size.micro * size.tokens
    groups = list(microbatches(real, budget))
    slots = sum(len(g) * int(real[g].max()) for g in groups)
    return {
        "passes, padded": len(groups),
        "passes, packed": len(packed_microbatches(real, budget)),
        "share of padding": round(1 - int(real.sum()) / slots, 3),
    }


def loss_of(size: Size, rows: list[Episode], placement: Placement, device: str) -> float:
    """Return the imitation loss of a newly initialized decoder on the episodes."""
    actor, batch = place(decoder(size), placement, device), collate(rows)
    with torch.no_grad():
        return sum(
            float(imitation_loss(logprobs_of(actor, part), part.action, batch.action_tokens))
            for _, part in device_microbatches(batch, size.micro * size.tokens, actor)
        )


def compare(
    stage: str, steps: dict[str, Callable[[], float]], tokens: int, rounds: int
) -> dict[str, Any]:
    """Run the two arms in alternation; return tokens per second, and the ratio of padded to packed
    time."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(step())
    ratios = [a / b for a, b in zip(times["padded"], times["packed"], strict=True)]
    return {
        **{
            f"{stage} {n}, tokens/s": round(tokens / statistics.median(t)) for n, t in times.items()
        },
        f"{stage} packed over padded": round(statistics.median(ratios), 3),
        f"{stage} extremes": [round(min(ratios), 3), round(max(ratios), 3)],
    }


if __name__ == "__main__":
    main()
