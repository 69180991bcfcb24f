"""Test the shares of the slow tests, which CI runs in rotation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shares import in_share


class Item:
    """Stand-in for a collected test, with the attributes that determine its share: name, file and
    marks."""

    def __init__(self, name: str, file: str, *marks: str) -> None:
        self.name, self.path, self.keywords = name, Path(file), dict.fromkeys(marks)


ITEMS: list[Any] = [
    Item("fast", "test_a.py"),
    Item("exploit", "test_a.py", "slow", "always"),
    *[Item(f"a{n}", "test_a.py", "slow") for n in range(7)],
    *[Item(f"b{n}", "test_b.py", "slow") for n in range(2)],
    Item("c0", "test_c.py", "slow"),
]
EVERY = ["fast", "exploit"]


def names(share: str) -> list[str]:
    return [item.name for item in in_share(ITEMS, share)]


@pytest.mark.parametrize("first", [0, 2, 901])
def test_consecutive_shares_have_each_slow_test_once(first: int) -> None:
    chosen = [name for k in range(3) for name in names(f"{first + k}/3")]
    assert sorted(chosen) == sorted([*EVERY * 3, *[i.name for i in ITEMS[2:]]])


def test_every_share_has_the_tests_that_are_not_slow_and_those_marked_always() -> None:
    assert all(names(f"{k}/5")[:2] == EVERY for k in range(5))


def test_without_a_share_all_tests_are_selected() -> None:
    assert in_share(ITEMS, "0/1") == ITEMS


def test_first_tests_of_files_are_in_different_shares() -> None:
    firsts = {name: {k for k in range(6) if name in names(f"{k}/6")} for name in ("a0", "b0", "c0")}
    assert len(set.union(*firsts.values())) > 1
