"""Compare the views with snapshots: text files next to the tests.

`UPDATE_SNAPSHOTS=1 python -m pytest tests/ui` rewrites the snapshots; read the difference before it
is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("snapshots")


@pytest.fixture
def assert_looks_as_before() -> Callable[[str, str], None]:
    """Return a function that compares a text with the snapshot of the given name."""

    def check(name: str, text: str) -> None:
        path = FOLDER / f"{name}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
