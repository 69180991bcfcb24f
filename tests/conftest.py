"""Shared by all tests: Ctrl-C works, and what needs a GPU is deselected where there is none.

Deselected, never silently skipped: the closing line of pytest counts them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cuagent.worker import Nursery


def pytest_configure() -> None:
    """Ctrl-C as a terminal gives it: what a shell starts in the background ignores it, for good."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if "gpu" in item.keywords]
    if not gpu or _has_cuda():
        return
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if "gpu" not in item.keywords]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A warm process for all referees whose tests do it no harm: torch is imported once."""
    from cuagent.worker import Nursery

    with Nursery() as started:
        yield started


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
