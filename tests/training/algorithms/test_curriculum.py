"""Test the choice of tasks and the file of outcomes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cuagent.training.algorithms.curriculum import (
    Curriculum,
    ability,
    append_outcomes,
    read_outcomes,
    sample_tasks,
    task_weights,
)
from cuagent.training.algorithms.reward import max_reward
from cuagent.training.data.segments import Episode, RecordError


def episode(task: str, reward: float) -> Episode:
    return Episode("e", task, task, (), reward, "submitted")


def test_sometimes_solved_tasks_get_most_episodes() -> None:
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


def test_sampled_tasks_match_shares_within_one() -> None:
    shares = {"a": 0.3, "b": 0.05, "c": 0.15}
    for seed in range(50):
        counts = Counter(sample_tasks(shares, 100, seed))
        assert sum(counts.values()) == 100
        assert all(abs(counts[t] - 100 * s / 0.5) <= 1 for t, s in shares.items())


def test_outcomes_of_repeated_iterations_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    for iteration in range(4):
        append_outcomes(path, iteration, [episode("a", float(iteration))])
    assert read_outcomes(path, 2) == [("a", 0.0), ("a", 1.0)]
    assert read_outcomes(path, 9) == [("a", 0.0), ("a", 1.0)]


def test_partial_last_outcome_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    append_outcomes(path, 0, [episode("a", 1.0)])
    with path.open("a") as out:
        out.write('[1, "a", ')
    assert read_outcomes(path, 1) == [("a", 1.0)]
    append_outcomes(path, 1, [episode("b", 2.0)])
    assert read_outcomes(path, 2) == [("a", 1.0), ("b", 2.0)]


def test_broken_line_of_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "outcomes.jsonl").write_text('[0, "a", 1.0]\nnonsense\n[1, "a", 1.0]\n')
    with pytest.raises(RecordError, match=r"outcomes\.jsonl:2: not JSON"):
        read_outcomes(tmp_path / "outcomes.jsonl", 2)


def test_unseen_tasks_of_the_policys_level_come_first() -> None:
    graded = {"easy": 0.0, "middle": 0.5, "hard": 1.0}
    start = task_weights(list(graded), [], Curriculum(), graded)
    assert start["middle"] == max(start.values())
    strong = [(f"e{n}", 3.0) for n in range(20)]
    levels = graded | {name: 0.5 for name, _ in strong}
    later = task_weights(list(graded), strong, Curriculum(), levels)
    assert later["hard"] > later["middle"] > later["easy"]
    weak = [(name, -1.0) for name, _ in strong]
    failing = task_weights(list(graded), weak, Curriculum(), levels)
    assert failing["easy"] > failing["middle"] > failing["hard"]


def test_outcomes_of_a_task_outweigh_its_difficulty() -> None:
    outcomes = [("solved", 3.0)] * 32
    weights = task_weights(
        ["solved", "other"], outcomes, Curriculum(), {"solved": 0.9, "other": 0.9}
    )
    assert weights["solved"] < weights["other"]


def test_ability_grows_with_success_and_stays_finite() -> None:
    settings = Curriculum()
    none = ability({}, {}, settings)
    one = ability({"a": [1.0]}, {"a": 0.5}, settings)
    many = ability({"a": [1.0] * 50}, {"a": 0.5}, settings)
    assert none == pytest.approx(0.0, abs=1e-6)
    assert 0 < one < many < 4 * settings.spread
