"""Two processes on the CPU do what one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import two_processes

from cuagent.training.metrics import read_metrics
from cuagent.training.segments import Episode, Kind, Segment, write_episodes


def test_two_processes_equal_one(tmp_path: Path) -> None:
    luck = torch.Generator().manual_seed(0)

    def some(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, 16, (n,), generator=luck).tolist())

    episodes = [
        Episode(
            f"e{i}",
            "t",
            "t",
            (
                Segment(Kind.PROMPT, some(3)),
                Segment(Kind.ACTION, some(2 + i % 5), (-2.7,) * (2 + i % 5)),
                Segment(Kind.OBSERVATION, some(4)),
            ),
            float(i % 4),
            "submitted",
        )
        for i in range(24)
    ]
    write_episodes(tmp_path / "episodes.jsonl", episodes)
    one, two = tmp_path / "one", tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    arguments = [two_processes.__file__, str(tmp_path / "episodes.jsonl"), str(two)]
    result = subprocess.run(
        [*torchrun, "--nproc-per-node=2", *arguments], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-2000:]
    two_processes.train(tmp_path / "episodes.jsonl", one)
    weights = torch.load(one / "weights-0.pt")
    for rank in (0, 1):
        torch.testing.assert_close(
            torch.load(two / f"weights-{rank}.pt"), weights, atol=2e-5, rtol=0
        )
    for a, b in zip(
        read_metrics(one / "ppo" / "metrics.jsonl"),
        read_metrics(two / "ppo" / "metrics.jsonl"),
        strict=True,
    ):
        for name in ("actor_loss", "critic_loss", "ratio_mean", "clip_fraction", "entropy", "ev"):
            assert abs(a[name] - b[name]) < 1e-4, name
