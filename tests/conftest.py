"""Shared by all tests: GPU tests are deselected, never silently skipped, where there is no GPU.

The closing line of pytest counts what was deselected.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if "gpu" in item.keywords]
    if not gpu or _has_cuda():
        return
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if "gpu" not in item.keywords]


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
