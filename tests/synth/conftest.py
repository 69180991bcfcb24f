"""Fixture for tests of synth: one fork server that all tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuagent.synth.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Yield workers whose fork server has not imported torch.compile; children that need it import
    it."""
    with Workers("cpu", compile=False) as started:
        yield started
