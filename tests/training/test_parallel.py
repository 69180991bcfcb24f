"""Test that two processes equal one: with a replica each, and with one sharded model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import two_processes

from cuagent.training.algorithms.metrics import read_metrics
from cuagent.training.data.segments import Episode, Kind, Segment, write_episodes
from cuagent.training.policy.placement import Placement

pytestmark = pytest.mark.slow

FIGURES = ("actor_loss", "critic_loss", "grad_norm_actor", "ratio_mean", "clip_fraction", "entropy",
           "ev")  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return str(request.param)


@pytest.fixture(scope="module")
def folder(device: str, python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one process (`one`, `started-by-one` after the first iteration) and of two (all
    others)."""
    root = tmp_path_factory.mktemp("parallel")
    torch.set_num_threads(1)
    write_episodes(root / "episodes.jsonl", recorded())
    two_processes.train(root / "episodes.jsonl", root / "one", Placement(), device)
    shutil.copytree(root / "one", root / "started-by-one")
    shutil.rmtree(root / "started-by-one" / "ppo" / "step-00000002")
    torchrun = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = ["--no-python", *python, two_processes.__file__]
    arguments = [str(root / "episodes.jsonl"), str(root), device]
    result = subprocess.run(
        [*torchrun, *program, *arguments], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return root


def recorded() -> list[Episode]:
    rng = torch.Generator().manual_seed(0)

    def some(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, 16, (n,), generator=rng).tolist())

    return [
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


@pytest.mark.parametrize("way", ["replicated", "sharded", "started-by-one"])
def test_two_processes_match_one(folder: Path, way: str) -> None:
    weights = torch.load(folder / "one" / "weights-0.pt")
    for rank in (0, 1):
        theirs = torch.load(folder / way / f"weights-{rank}.pt")
        torch.testing.assert_close(theirs, weights, atol=2e-5, rtol=0)
    ours, found = (read_metrics(folder / name / "ppo" / "metrics.jsonl") for name in ("one", way))
    for a, b in zip(ours, found, strict=True):
        for name in FIGURES:
            assert abs(a[name] - b[name]) < 1e-4, name


def test_one_process_resumes_from_two_processes_shards(folder: Path, device: str) -> None:
    shutil.rmtree(folder / "sharded" / "ppo" / "step-00000002")
    two_processes.train(folder / "episodes.jsonl", folder / "sharded", Placement(), device)
    torch.testing.assert_close(
        torch.load(folder / "sharded" / "weights-0.pt"),
        torch.load(folder / "one" / "weights-0.pt"),
        atol=2e-5,
        rtol=0,
    )
