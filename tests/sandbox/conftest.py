"""Fixtures for the tests of the sandbox: a folder and the isolation tier."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuagent.sandbox import Tier, probe


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Yield a private folder outside of pytest's folder, which the sandbox cannot list."""
    with tempfile.TemporaryDirectory(prefix="cuagent-test-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="session")
def tier() -> Tier:
    found = probe()
    if found is Tier.NONE:
        pytest.skip("this machine has no isolation tier")
    return found
