"""Test the rules for the episodes that RFT imitates."""

from __future__ import annotations

import json

import pytest

from cuagent.training.data.filters import (
    Filters,
    filter_episodes,
    longest_repeat,
    touches_protected,
)
from cuagent.training.data.segments import Call, Episode, Kind, Segment


@pytest.mark.parametrize(
    ("calls", "times"),
    [("", 0), ("a", 1), ("abc", 1), ("aab", 2), ("aaa", 3), ("abab", 2), ("ababab", 3),
     ("xabcabcabcy", 3), ("abcdabcdabcd", 3), ("abacad", 1)],
)  # fmt: skip
def test_longest_repeat_counts_calls_and_cycles(calls: str, times: int) -> None:
    assert longest_repeat([Call(n, c, "{}", True, True) for n, c in enumerate(calls)]) == times


@pytest.mark.parametrize(
    ("tool", "arguments", "touches"),
    [
        ("write", {"path": "reference.py", "text": ""}, True),
        ("edit", {"path": "kernels/../reference.py"}, True),
        ("write", {"path": "kernels/reference.py", "text": ""}, False),
        ("read", {"path": "reference.py"}, False),
        ("bash", {"command": "cat x.py > reference.py"}, True),
        ("bash", {"command": "cd kernels && sed -i s/a/b/ ../reference.py"}, True),
        ("bash", {"command": "python -c \"open('reference.py', 'w')\""}, True),
        ("bash", {"command": "cat reference.py > copy.py; rm copy.py"}, False),
        ("bash", {"command": "python reference.py && rm x.txt"}, False),
        ("bash", {"script": 3}, False),
    ],
)
def test_touches_protected_detects_changes_of_reference(
    tool: str, arguments: dict[str, object], touches: bool
) -> None:
    assert touches_protected(Call(0, tool, json.dumps(arguments), True, True)) is touches


@pytest.mark.parametrize(
    "wrong",
    [{"fastest": 0}, {"per_task": -1}, {"repeats": 0}, {"tokens": 0}, {"bad_calls": -1}],
)
def test_a_filter_that_would_keep_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .* is not"):
        Filters(**wrong)  # type: ignore[arg-type]


def test_fastest_episodes_of_each_task_are_kept_by_measured_gain() -> None:
    def episode(name: str, task: str, over_compile: float | None, reward: float = 1.0) -> Episode:
        figures = {} if over_compile is None else {"over_compile": over_compile}
        action = (Segment(Kind.PROMPT, (1,)), Segment(Kind.ACTION, tuple(map(ord, name))))
        return Episode(name, task, task, action, reward, "submitted", figures=figures)

    episodes = [
        episode("slow", "t", 0.4), episode("fast", "t", 1.9, 3.0), episode("middle", "t", 1.2),
        episode("wrong", "t", None, -1.0), episode("untimed", "t", None), episode("u", "u", 0.2),
    ]  # fmt: skip
    kept, funnel = filter_episodes(episodes, Filters(fastest=2))
    assert [e.id for e in kept] == ["fast", "middle", "u"]
    assert dict(funnel.dropped)["not of the 2 fastest"] == 2
