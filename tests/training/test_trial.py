"""A seed of the trial in its own process: a borrowed pool, the arm beside PPO, the audit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cuagent.training.audit import solution_of
from cuagent.training.presets import DemoConfig, for_test
from cuagent.training.segments import RecordError, read_episodes
from cuagent.training.teacher import given
from cuagent.training.trial import run_trial


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trial")
    run_trial(replace(for_test(DemoConfig()), cores=1), [3], "cpu", out, lambda _: None)
    return out


def test_arms_are_compared_on_the_same_heldout_tasks(trial: Path) -> None:
    found = json.loads((trial / "trial.json").read_text())
    assert set(found["reward"]) == {"base", "rft", "ppo", "more", "best of 8 of rft"}
    assert found["heldout_tasks"] == 1
    assert found["ppo_less"]["more"]["seeds"] == [
        found["reward"]["ppo"]["mean"] - found["reward"]["more"]["mean"]
    ]
    assert found["audit"][0]["reward_again"] == found["audit"][0]["reward_before"]


def test_the_other_arm_plays_as_many_episodes_as_ppo(trial: Path) -> None:
    seed = trial / "seed-3"
    ppo = [*(seed / "ppo" / "episodes").glob("*.jsonl")]
    ppo.append(seed / "value" / "sampled" / "episodes" / "00000.jsonl")
    more = [*(seed / "more").glob("*/sampled/episodes/*.jsonl")]
    assert sum(len(list(read_episodes(p))) for p in ppo) == 18
    assert sum(len(list(read_episodes(p))) for p in more) == 18


def test_the_kernel_that_was_scored_is_found_in_the_episodes_calls(trial: Path) -> None:
    from cuagent.task import load_task

    task = load_task(str(next((trial / "tasks").glob("*.py"))), device="cpu")
    episodes = read_episodes(trial / "demonstrations" / "episodes.jsonl")
    scored = [e for e in episodes if e.reward > 0]
    assert scored
    for episode in scored:
        assert solution_of(episode, given(task)).digest == episode.solution
    with pytest.raises(RecordError, match="do not make the kernel"):
        solution_of(replace(scored[0], solution="another"), given(task))
