"""Test that pyproject.toml lists every package of the project, and that no modules import each
other in a circle."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_folder_with_code_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    own = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("cuagent/**/*.py")}
    training = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("training/**/*.py")}
    skills = {".".join(f.parent.relative_to(ROOT).parts) for f in ROOT.glob("skills/**/*.md")}
    assert set(listed) == own | {f"cuagent.{name}" for name in training | skills}


def modules(root: Path) -> dict[str, Path]:
    """Return the file of each module of cuagent, by dotted name; the folder `training` is
    `cuagent.training`."""
    found = {}
    for folder, package in (("cuagent", "cuagent"), ("training", "cuagent.training")):
        for file in (root / folder).rglob("*.py"):
            parts = (package, *file.relative_to(root / folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below a node, without a walk through their expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def imports(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports, including imports in functions and under
    TYPE_CHECKING."""
    files = modules(root)
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        nodes = [
            n for n in statements(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)
        ]
        named = {(n.module or "", f"{n.module}.{alias.name}") for n in nodes for alias in n.names}
        targets = {inner if inner in files else outer for outer, inner in named}
        found[name] = targets & set(files) - {name}
    return found


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(imports(ROOT)).prepare()


def test_a_circle_under_type_checking_is_found(tmp_path: Path) -> None:
    (tmp_path / "cuagent").mkdir()
    (tmp_path / "cuagent" / "a.py").write_text("def f():\n    from cuagent.b import g\n")
    (tmp_path / "cuagent" / "b.py").write_text(
        "if TYPE_CHECKING:\n    from cuagent import a\n    from cuagent.a import f\n"
    )
    with pytest.raises(CycleError):
        TopologicalSorter(imports(tmp_path)).prepare()
