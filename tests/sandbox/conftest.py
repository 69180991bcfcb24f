"""Folders and the tier for the sandbox's tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.sandbox import Tier, probe


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A private folder outside of pytest's own, which the sandbox may not even list."""
    with tempfile.TemporaryDirectory(prefix="cuagent-test-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session")
def tier() -> Tier:
    found = probe()
    if found is Tier.NONE:
        pytest.skip("this machine has no isolation tier")
    return found
