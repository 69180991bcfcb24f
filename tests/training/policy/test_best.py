"""Test the held-out part: epochs, early stopping, the best weights, equal tasks, one split."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from dictated import SOURCE
from toy_game import FAST, play, same, silent, small_actor, weights

from cuagent.agent.tools import TOOLS
from cuagent.task import Device, Precision
from cuagent.task.task import Task
from cuagent.training.algorithms.metrics import read_metrics, reward_fall
from cuagent.training.algorithms.ppo import ppo
from cuagent.training.algorithms.rft import RftConfig, imitation, rft, steps_of
from cuagent.training.algorithms.value import ValueConfig, targets, value_steps_of
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.data.tasks import (
    Part,
    is_heldout,
    part_of,
    source_digest,
    split,
    split_tasks,
)
from cuagent.training.policy.chat import train_tokenizer
from cuagent.training.policy.model import new_actor, new_critic, save_model, small_config
from cuagent.training.policy.optimize import AdamW
from cuagent.training.settings import TrainConfig
from cuagent.training.stages import collect

pytestmark = pytest.mark.slow


def test_steps_follow_the_number_of_episodes() -> None:
    config = RftConfig(epochs=3, episodes_per_batch=16)
    assert [steps_of(config, n) for n in (5, 50, 1600)] == [3, 9, 300]
    assert steps_of(replace(config, steps=7), 1600) == 7
    assert value_steps_of(ValueConfig(epochs=2, episodes_per_batch=8), 80) == 20


def test_rft_stops_early_and_keeps_the_best_weights(tmp_path: Path) -> None:
    """Overfit eight episodes at a high rate: the held-out loss falls, then rises."""
    actor, said = small_actor(), list[str]()
    few, others = play(actor, 8, 1), play(actor, 64, 2)
    config = RftConfig(epochs=60, episodes_per_batch=4, optimizer=AdamW(lr=3e-2), save_every=999)
    rft(actor, few, others, config, tmp_path, said.append)
    rows = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "heldout_loss" in r]
    losses = [row["heldout_loss"] for row in rows]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 2, "it stops after two evaluations without a lower loss"
    assert rows[-1]["step"] < steps_of(config, 8)
    assert imitation(actor, others, 4096) == pytest.approx(losses[best], abs=1e-5)
    # A repeated command does no step and has the same weights.
    again = small_actor(seed=5)
    rft(again, few, others, config, tmp_path, said.append)
    assert same(weights(again), weights(actor))
    assert f"rft stops at {rows[-1]['step']}/" in said[-1]


def test_targets_at_lambda_one_ask_the_critic_for_nothing() -> None:
    from cuagent.training.data.batch import collate

    batch = collate(play(small_actor(), 4, 1))
    found = targets(None, batch, ValueConfig(lam=1.0))
    torch.testing.assert_close(found, batch.rewards[batch.row_episode][:, None].expand(found.shape))
    critic = new_critic(small_actor())
    near = targets(critic, batch, ValueConfig(lam=1.0 - 1e-9))
    torch.testing.assert_close(near[batch.action], found[batch.action], atol=1e-5, rtol=0)


def test_ppo_ends_with_the_best_weights_on_heldout_tasks(tmp_path: Path) -> None:
    actor, kept, said = small_actor(), dict[int, list[torch.Tensor]](), list[str]()
    worth = {0: 0.0, 2: 1.0, 4: 3.0, 6: 2.0}

    def evaluate(iterations: int) -> list[Episode]:
        kept[iterations] = weights(actor)
        return [replace(e, reward=worth[iterations]) for e in play(actor, 2, 9)]

    def train(iterations: int) -> list[Episode]:
        return play(actor, 16, iterations)

    config = replace(FAST, iterations=6, evaluate_every=2)
    history = ppo(actor, new_critic(actor), train, config, tmp_path, said.append, evaluate=evaluate)
    assert list(kept) == [0, 2, 4, 6]
    assert same(weights(actor), kept[4])
    assert not same(kept[4], kept[6])
    assert [m.get("heldout_reward") for m in history] == [None, 1.0, None, 3.0, None, 2.0]
    assert said[-1] == "kept the weights of iteration 4: held-out reward +3.00"
    resumed = small_actor(seed=3)  # the finished stage again: no evaluation, the same weights
    ppo(resumed, new_critic(resumed), train, config, tmp_path, silent, evaluate=evaluate)
    assert same(weights(resumed), kept[4])


def test_reward_falls_only_on_equal_tasks() -> None:
    easy, hard = {"a": 3.0, "b": 3.0}, {"c": -1.0, "d": -1.0}
    assert reward_fall([easy, hard]) == 0.0, "the curriculum moved on to harder tasks"
    assert reward_fall([easy, {"a": 3.0, "c": -1.0}]) == 0.0
    assert reward_fall([easy, {"a": 1.0, "b": 2.0}]) == 1.5
    assert reward_fall([{"a": 3.0}, {"a": 1.0, "c": 1.0, "d": 1.0}]) == 0.0, "too few in common"


def test_tasks_and_their_episodes_are_split_alike() -> None:
    tasks = [Task(Path(f"{n}.py"), "Model", SOURCE + f"# {n}\n") for n in range(60)]
    train, heldout = split_tasks(tasks, 0.2)
    assert len(train) + len(heldout) == 60
    assert heldout
    played = [
        replace(e, task=t.digest, source=source_digest(t.source, t.entry))
        for t, e in zip(tasks, play(small_actor(), 60, 1), strict=True)
    ]
    assert [e.task for e in split(played, 0.2)[0]] == [t.digest for t in train]
    for other in ({"device": Device.CUDA}, {"precision": Precision.TF32}, {"inputs": "f32[8]"}):
        renamed = [replace(t, **other) for t in tasks]
        assert renamed[0].digest != tasks[0].digest
        assert [t.source for t in split_tasks(renamed, 0.2)[0]] == [t.source for t in train]
    assert part_of(tasks, 0.2, Part.HELDOUT) == heldout
    assert part_of(tasks, 0.2, Part.ALL) == tasks
    with pytest.raises(RecordError, match=r"none of 60 tasks is held out \(heldout=0\.0\)"):
        part_of(tasks, 0.0, Part.HELDOUT)
    with pytest.raises(RecordError, match="every task is held out"):
        split_tasks(heldout[:1], 0.2)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return the folder of twelve tasks; a held-out share of one half selects some of them."""
    (tmp_path / "tasks").mkdir()
    for n in range(12):
        (tmp_path / "tasks" / f"t{n}.py").write_text(SOURCE + f"# {n}\n")
    return tmp_path / "tasks"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return the folder of a policy whose tokenizer was trained on the real prompt, which is
    long."""
    tools = json.dumps([[tool.spec.description, dict(tool.spec.schema)] for tool in TOOLS])
    chat = train_tokenizer([(files("cuagent.agent") / "system.md").read_text(), tools] * 3, 2000)
    config = small_config(len(chat.tokenizer), 1, 32, 2, 12000, chat.end, chat.pad)
    save_model(new_actor(config, 1), tmp_path / "policy")
    chat.save(tmp_path / "policy")
    return tmp_path / "policy"


SETTINGS = ("play.turns=1", "play.reply=4", "play.timed=false", "heldout=0.5")


def test_processes_of_torchrun_share_the_episodes(
    policy: Path, tasks: Path, tmp_path: Path, python: list[str]
) -> None:
    out = tmp_path / "out"
    torchrun = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "cuagent.training.cli", "collect", "--policy", policy, "--tasks", tasks]
    options = ["--out", out, "--episodes", "9", "--device", "cpu"]
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    done = subprocess.run(
        [str(a) for a in (*torchrun, *command, *options, *sets)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    episodes = list(read_episodes(out / "episodes" / "00000.jsonl"))
    assert len({e.id for e in episodes}) == len(episodes) == 9
    assert [p.name for p in (out / "episodes").iterdir()] == ["00000.jsonl"]
    assert json.loads((out / "evaluation.json").read_text())["episodes"] == 9
    assert done.stdout.count("reward -1.000") == 1, "one process reports"
    trained = {source_digest(f.read_text(), "Model") for f in tasks.glob("*.py")}
    assert {e.source for e in episodes} == {t for t in trained if not is_heldout(t, 0.5)}


def test_evaluation_plays_the_heldout_tasks(policy: Path, tasks: Path, tmp_path: Path) -> None:
    config = TrainConfig(heldout=0.5)
    quick = replace(config.play, turns=1, reply=4, timed=False)
    config = replace(config, play=quick)
    for part in (Part.TRAIN, Part.HELDOUT):
        collect(policy, tasks, tmp_path / part, 8, config, "cpu", silent, part)
    played = {
        part: {e.source for e in read_episodes(tmp_path / part / "episodes" / "00000.jsonl")}
        for part in (Part.TRAIN, Part.HELDOUT)
    }
    assert not any(is_heldout(t, 0.5) for t in played[Part.TRAIN])
    assert all(is_heldout(t, 0.5) for t in played[Part.HELDOUT])
