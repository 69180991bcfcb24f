"""Test folders that are reused: by the same command, by another one, with other settings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.training.algorithms.rft import RftConfig
from cuagent.training.config import ConfigError
from cuagent.training.demo.demo import run_demo
from cuagent.training.demo.presets import DemoConfig, for_test
from cuagent.training.demo.trial import open_seeds_manifest
from cuagent.training.manifest import MANIFEST, finish, fixed_settings, open_manifest

SMALL = for_test(DemoConfig())


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_manifest_refuses_different_command_once_results_exist(
    tmp_path: Path,
) -> None:
    assert (
        open_manifest(tmp_path, "rft", {"policy": "a"}, fixed_settings(RftConfig(seed=1))) is None
    )
    asked = "rft", {"policy": "b"}, fixed_settings(RftConfig())
    assert open_manifest(tmp_path, *asked) is None, "nothing was made yet"
    finish(tmp_path, 3)
    (tmp_path / "model").mkdir()
    found = open_manifest(tmp_path, "rft", {"policy": "b"}, fixed_settings(RftConfig(save_every=1)))
    assert found is not None
    assert found["finished"] == 3
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="from another policy, with seed=0, not 2; use another"):
        open_manifest(tmp_path, "rft", {"policy": "a"}, fixed_settings(RftConfig(seed=2)))
    with pytest.raises(ConfigError, match="made by train rft, not train value;"):
        open_manifest(tmp_path, "value", {}, {})
    assert contents(tmp_path) == before


def test_manifest_error_shortens_many_differences(tmp_path: Path) -> None:
    open_manifest(tmp_path, "x", {}, dict.fromkeys("abcde", 1))
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"with a=1, not 2, with b=1.* c=1, not 2 and 2 more;"):
        open_manifest(tmp_path, "x", {}, dict.fromkeys("abcde", 2))


def test_folder_without_manifest_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    for text in (None, '{"policy": "p", "source": "[]", "seed": "0"}'):
        if text is not None:
            (tmp_path / MANIFEST).write_text(text)
        assert open_manifest(tmp_path, "rft", {"policy": "a"}, {"seed": 1}) is None
        finish(tmp_path, 4)
    assert json.loads((tmp_path / MANIFEST).read_text())["policy"] == "p"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(SMALL, seed=7), "with seed=0, not 7"),
        (replace(SMALL, decoder=replace(SMALL.decoder, width=64)), "decoder.width=32, not 64"),
        (replace(SMALL, ppo=replace(SMALL.ppo, iterations=9)), "ppo.iterations=2, not 9"),
    ],
)
def test_demo_refuses_folder_of_other_settings(other: DemoConfig, said: str, demo: Path) -> None:
    before = {p.stat().st_mtime_ns for p in demo.rglob("*")}
    with pytest.raises(ConfigError, match=said):
        run_demo(other, "cpu", demo, lambda _: None)
    assert {p.stat().st_mtime_ns for p in demo.rglob("*")} == before


@pytest.mark.slow
def test_trial_accepts_new_seeds_and_arms(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "trial"
    open_seeds_manifest(out, replace(SMALL, more_rounds=0))
    shutil.copytree(demo / "demonstrations", out / "demonstrations")
    open_seeds_manifest(out, replace(SMALL, seed=3, minutes=9.0, more_rounds=2))
    with pytest.raises(ConfigError, match="turns=2, not 3"):
        open_seeds_manifest(out, replace(SMALL, turns=3))
    with pytest.raises(ConfigError, match="by train demo --seeds, not train demo;"):
        run_demo(SMALL, "cpu", out, lambda _: None)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"command": "rft", "of": []}'])
def test_foreign_manifest_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="is no manifest of cuagent"):
        open_manifest(tmp_path, "rft", {}, {})


@pytest.mark.parametrize("name", [f"{MANIFEST}.partial", "metrics.jsonl", "episodes"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """A folder that came with a repository may hold links to files of the user."""
    users, out = tmp_path / "users", tmp_path / "out"
    out.mkdir()
    users.write_text("text of the user")
    (out / name).symlink_to(users)
    with pytest.raises(ConfigError, match=f"{name}: is a link"):
        open_manifest(out, "rft", {}, {})
    assert users.read_text() == "text of the user"
