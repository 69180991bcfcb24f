"""Settings and the curriculum."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cuagent.training.batch import batch_order
from cuagent.training.config import SEEDS, ConfigError, configure
from cuagent.training.curriculum import (
    Curriculum,
    append_outcomes,
    read_outcomes,
    sample_tasks,
    task_weights,
)
from cuagent.training.monitor import Action
from cuagent.training.presets import DemoConfig
from cuagent.training.reward import max_reward
from cuagent.training.segments import Episode, RecordError
from cuagent.training.stages import TrainConfig


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    lam: float | None = 0.95
    action: Action = Action.WARN
    gpus: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Outer:
    steps: int = 3
    name: str = "a"
    inner: Inner = field(default_factory=Inner)


def test_flags_lie_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('steps = 5\n[inner]\nrate = 1\naction = "stop"\ngpus = [1, 2]\n')
    found = configure(Outer(), file, ["inner.rate=2e-3", "inner.lam=none", "name=b c"])
    assert found == Outer(5, "b c", Inner(2e-3, None, Action.STOP, (1, 2)))
    assert isinstance(configure(Outer(), file, []).inner.rate, float)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("stepz=3", "no setting stepz; there are inner, name, steps"),
        ("inner.rat=3", "no setting inner.rat; there are action, gpus, lam, rate"),
        ("steps=2.5", "steps: 2.5 is not int"),
        ("steps=true", "steps: true is not int"),
        ("inner.action=explode", "not one of warn, stop, rollback"),
        ("inner.rate=none", "inner.rate: null is not float"),
        ("inner.rate=nan", "inner.rate: nan is not a finite number"),
        ("inner.lam=-inf", "inner.lam: -inf is not a finite number"),
        ("inner.rate=1" + "0" * 400, "is not a finite number"),
        ('inner.gpus=[0, "a"]', 'inner.gpus: "a" is not int'),
        ("inner.gpus=[]", "inner.gpus: an empty list"),
        ("steps", "write name=value"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(Outer(), None, [setting])


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("ppo.actor.clip_norm=-1", "ppo.actor.clip_norm: -1.0 is not above 0"),
        ("rft.optimizer.beta1=1", "rft.optimizer.beta1: 1.0 is not below 1"),
        ("rft.optimizer.decay=-1", "rft.optimizer.decay: -1.0 is not 0 or more"),
        ("value.seed=99999999999999999999", "value.seed: 9+ is not from 0 to 4294967295"),
        ("seed=-1", "seed: -1 is not from 0"),
        ("ppo.importance_cap=-2", "ppo.importance_cap: -2.0 is not above 0"),
        ("ppo.clip.low=2", "ppo.clip.low: 2.0 is not from 0 to 1"),
        ("ppo.clip.high=-1", "ppo.clip.high: -1.0 is not 0 or more"),
        ("ppo.lam_actor=1.5", "ppo.lam_actor: 1.5 is not from 0 to 1"),
        ("ppo.kl_weight=-1", "ppo.kl_weight: -1.0 is not 0 or more"),
        ("ppo.rollbacks=-1", "ppo.rollbacks: -1 is not 0 or more"),
        ("ppo.limits.patience=0", "ppo.limits.patience: 0 is not 1 or more"),
        ("heldout=1", "heldout: 1.0 is not below 1"),
        ("play.seconds=0", "play.seconds: 0.0 is not above 0"),
        ("play.together=2", "play.together: 2.0 is not from 0 to 1"),
    ],
)
def test_what_would_train_wrongly_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(TrainConfig(), None, [setting])


def test_the_largest_seed_still_makes_batches() -> None:
    assert len(batch_order(4, 2, SEEDS[1], 10**6)) == 2


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("decoder.heads=3", "decoder.width: 64 is no multiple of twice the 3 heads"),
        ("decoder.layers=0", "decoder.layers: 0 is not 1 or more"),
        ("first_turns=-1", "first_turns: -1 is not 0 or more"),
        ("minutes=-3", "minutes: -3.0 is not 0 or more"),
    ],
)
def test_what_no_demonstration_could_use_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(DemoConfig(), None, [setting])


def test_settings_that_fit_each_other_need_not_do_so_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[decoder]\nwidth = 30\n")
    found = configure(DemoConfig(), file, ["decoder.heads=3", "turns=2"]).decoder
    assert (found.width, found.heads) == (30, 3)


def test_owners_beside_each_other_are_not_for_actors_of_ray() -> None:
    assert configure(TrainConfig(), None, ["play.beside=4"]).play.beside == 4
    with pytest.raises(ConfigError, match="a Ray actor has one judge"):
        configure(TrainConfig(), None, ["play.beside=4", "play.ray=8"])


def episode(task: str, reward: float) -> Episode:
    return Episode("e", task, task, (), reward, "submitted")


def test_tasks_that_are_sometimes_solved_get_most_episodes() -> None:
    outcomes = (
        [("solved", 3.0)] * 8 + [("hopeless", -1.0)] * 8 + [("half", 3.0), ("half", -1.0)] * 4
    )
    shares = task_weights(["solved", "hopeless", "half", "new"], outcomes, Curriculum())
    assert shares["solved"] == shares["hopeless"] == pytest.approx(0.05)
    assert shares["half"] == shares["new"] == pytest.approx(0.30)
    untimed = [(name, min(reward, 1.0)) for name, reward in outcomes]
    scale = Curriculum(highest=max_reward(timed=False))
    assert task_weights(list(shares), untimed, scale) == pytest.approx(shares)
    forgotten = outcomes + [("solved", -1.0), ("solved", 3.0)] * 16
    assert task_weights(["solved"], forgotten, Curriculum())["solved"] == pytest.approx(0.30)


def test_every_task_gets_its_share_to_within_one() -> None:
    shares = {"a": 0.3, "b": 0.05, "c": 0.15}
    for seed in range(50):
        counts = Counter(sample_tasks(shares, 100, seed))
        assert sum(counts.values()) == 100
        assert all(abs(counts[t] - 100 * s / 0.5) <= 1 for t, s in shares.items())


def test_outcomes_of_iterations_that_will_run_again_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    for iteration in range(4):
        append_outcomes(path, iteration, [episode("a", float(iteration))])
    assert read_outcomes(path, 2) == [("a", 0.0), ("a", 1.0)]
    assert read_outcomes(path, 9) == [("a", 0.0), ("a", 1.0)]


def test_an_outcome_that_a_kill_left_half_written_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    append_outcomes(path, 0, [episode("a", 1.0)])
    with path.open("a") as out:
        out.write('[1, "a", ')
    assert read_outcomes(path, 1) == [("a", 1.0)]
    append_outcomes(path, 1, [episode("b", 2.0)])
    assert read_outcomes(path, 2) == [("a", 1.0), ("b", 2.0)]


def test_a_broken_line_within_a_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "outcomes.jsonl").write_text('[0, "a", 1.0]\nnonsense\n[1, "a", 1.0]\n')
    with pytest.raises(RecordError, match=r"outcomes\.jsonl:2: not JSON"):
        read_outcomes(tmp_path / "outcomes.jsonl", 2)
