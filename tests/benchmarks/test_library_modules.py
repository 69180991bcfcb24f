"""The task files of `library_modules` and its numbered relatives, read without their libraries."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDERS = [
    Path(__file__).parents[2] / "benchmarks" / f"library_modules{n}" for n in ("", "_2", "_3")
]
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("*.py"))]
LIBRARIES = {"hf": "transformers", "timm": "timm", "tv": "torchvision", "torch": "torch"}
"""Library whose modules a file uses, by the first word of its name."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_a_task_with_modules_of_its_library(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    assert {"Model", "get_inputs", "get_init_inputs"} <= names
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in found}
    assert packages <= {"torch", LIBRARIES[path.stem.partition("_")[0]]}
    assert LIBRARIES[path.stem.partition("_")[0]] in packages


def test_a_folder_has_25_modules() -> None:
    assert [len(list(folder.glob("*.py"))) for folder in FOLDERS] == [25, 25, 25]
