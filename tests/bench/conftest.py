"""Fixtures for tests of the bench: twelve small tasks, and the command `cuagent bench` on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_tasks import write_twelve


@pytest.fixture
def twelve(tmp_path: Path) -> Path:
    """Return a folder of twelve tasks of different kinds, three of which end without a kernel."""
    return write_twelve(tmp_path / "tasks")
