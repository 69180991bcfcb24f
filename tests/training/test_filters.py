"""Test the rules for the episodes that RFT imitates."""

from __future__ import annotations

import json

import pytest

from cuagent.training.filters import longest_repeat, touches_protected
from cuagent.training.segments import Call


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
