"""Twelve small tasks, and the command `cuagent bench` on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_tasks import write_twelve


@pytest.fixture
def twelve(tmp_path: Path) -> Path:
    """Folder of twelve tasks of as many kinds, among them three that end without a kernel."""
    return write_twelve(tmp_path / "tasks")
