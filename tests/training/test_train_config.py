"""Test the parsing and checking of settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cuagent.training.algorithms.monitor import Action
from cuagent.training.config import SEEDS, ConfigError, configure
from cuagent.training.data.batch import batch_order
from cuagent.training.demo.presets import DemoConfig
from cuagent.training.settings import TrainConfig


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


def test_assignments_override_file_and_file_overrides_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('steps = 5\n[inner]\nrate = 1\naction = "stop"\ngpus = [1, 2]\n')
    found = configure(Outer(), file, ["inner.rate=2e-3", "inner.lam=none", "name=b c"])
    assert found == Outer(5, "b c", Inner(2e-3, None, Action.STOP, (1, 2)))
    assert isinstance(configure(Outer(), file, []).inner.rate, float)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("x=3", "no setting x; there are inner, name, steps"),
        ("stepz=3", r"no setting stepz \(did you mean steps\?\); there are inner, name, steps"),
        ("inner.rat=3", r"no setting inner.rat \(did you mean inner.rate\?\); there are action"),
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
def test_invalid_setting_is_named(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(Outer(), None, [setting])


def test_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file or directory$"):
        configure(Outer(), tmp_path / "absent.toml", [])
    (tmp_path / "broken.toml").write_text("steps = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml: Invalid value \(at line 1"):
        configure(Outer(), tmp_path / "broken.toml", [])


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
        ("play.gpus=[0, -1]", r"play.gpus: \[0, -1\] has an index below 0"),
        ("filters.fastest=0", "filters.fastest: 0 is not 1 or more"),
    ],
)
def test_setting_out_of_range_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(TrainConfig(), None, [setting])


def test_largest_seed_makes_batches() -> None:
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
def test_invalid_demo_setting_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configure(DemoConfig(), None, [setting])


def test_settings_are_checked_after_all_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[decoder]\nwidth = 30\n")
    found = configure(DemoConfig(), file, ["decoder.heads=3", "turns=2"]).decoder
    assert (found.width, found.heads) == (30, 3)


def test_ray_allows_one_judge_per_gpu() -> None:
    assert configure(TrainConfig(), None, ["play.beside=4"]).play.beside == 4
    with pytest.raises(ConfigError, match="a Ray actor has one judge"):
        configure(TrainConfig(), None, ["play.beside=4", "play.ray=8"])
