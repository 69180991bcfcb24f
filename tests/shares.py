"""Divide the slow tests into shares, so that several consecutive CI runs together run all of
them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def slow_except(names: Iterable[str], *fast: str) -> list[Any]:
    """Return the names as values for `parametrize`. All are slow tests except those in `fast`."""
    names = list(names)
    assert set(fast) <= set(names), set(fast) - set(names)
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as values for `parametrize`. All but the first `count` are slow tests."""
    found = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=[pytest.mark.slow] * (k >= count)) for k, case in enumerate(found)
    ]


def in_share(items: list[pytest.Item], share: str) -> list[pytest.Item]:
    """Return the tests in share "K/N": every N-th slow test of each file, and all tests that are
    not slow or marked `always`.

    The shares of N consecutive K contain each slow test once. The first selected test differs from
    file to file, so that the first tests of all files, often the longest, are not in one share.
    """
    first, count = map(int, share.split("/"))
    seen: Counter[Path] = Counter()
    selected = []
    for item in items:
        if "slow" in item.keywords and "always" not in item.keywords:
            number = seen[item.path] + zlib.crc32(item.path.name.encode())
            seen[item.path] += 1
            if (number - first) % count:
                continue
        selected.append(item)
    return selected
