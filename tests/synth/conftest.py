"""One fork server that all tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuagent.synth.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Workers that start torch.compile only in the children that need it."""
    with Workers("cpu", compile=False) as started:
        yield started
