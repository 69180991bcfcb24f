"""Divide the slow tests into shares, so that several consecutive CI runs together run all of
them."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest


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
