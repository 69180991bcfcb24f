"""Import a generated Python file as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
