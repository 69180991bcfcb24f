"""Fixtures for tests of packages: the imported package of `blocks.py`, and modules that it has
optimized."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from blocks import USERS, drawn, written
from torch import nn


@pytest.fixture(scope="session")
def python(warm: Callable[..., list[str]]) -> list[str]:
    """Return the command of an interpreter that has imported torch and, like each exported module,
    torch._dynamo."""
    return warm("torch._dynamo")


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("replace")
    written(folder / "block_fast")
    (folder / "users.py").write_text(USERS)
    (folder / "edited.py").write_text(USERS.replace("torch.relu", "torch.sigmoid"))
    (folder / "shifted.py").write_text(USERS.replace("SHIFT = 0.5", "SHIFT = 0.75"))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("users", "edited", "shifted"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def package(parent: Path) -> ModuleType:
    return importlib.import_module("block_fast")


@pytest.fixture
def silent(package: ModuleType) -> Iterator[None]:
    importlib.import_module("block_fast.model_new").PACKAGE.warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def original(parent: Path) -> Any:
    return drawn(importlib.import_module("users").Block(8))


@pytest.fixture
def model(original: Any, package: ModuleType, silent: None) -> Any:
    made = nn.Sequential(copy.deepcopy(original), nn.Identity()).eval()
    assert package.optimize_(made, gradients=True) is made
    return made
