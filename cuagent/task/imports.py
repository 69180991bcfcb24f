"""The files beside the user's that a task imports: what they say is part of the task.

Read, never run. Not covered: names that are put together at run time, data files, and what is
installed, which the versions stand for.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path


def package_of(path: Path) -> tuple[Path, str]:
    """The folder to import from, and the package the file belongs to ("" for a lone file)."""
    folder = path.parent
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def imported_digest(path: Path) -> str:
    """sha256 over every file that `path` imports from its own folder or package, and what those
    import; "" where there is none."""
    texts = sorted(imported_texts(path).items())
    return hashlib.sha256(repr(texts).encode()).hexdigest() if texts else ""


def imported_texts(path: Path) -> dict[str, str]:
    """The files that `imported_digest` covers: path below the folder to import from, and text."""
    root = package_of(path)[0]
    left, seen = [path], {path}
    while left:
        found = {file for file in _imports(left.pop(), root) if file.is_relative_to(root)} - seen
        seen |= found
        left += found
    return {str(file.relative_to(root)): _text(file) for file in seen - {path}}


def _imports(path: Path, root: Path) -> Iterator[Path]:
    """Files under `root` that one file imports, the packages that they lie in too."""
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):  # it says so when it is imported
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from _files(root, alias.name.split("."))
            case ast.ImportFrom(module=module, names=aliases, level=level):
                start = path.parents[min(level, len(path.parents)) - 1] if level else root
                names = module.split(".") if module else []
                for alias in aliases:
                    yield from _files(start, [*names, alias.name])


def _files(folder: Path, names: list[str]) -> Iterator[Path]:
    """What `folder` holds of a dotted name, as far as that is modules."""
    every = [folder / "__init__.py"]
    for name in names:
        folder = folder / name
        every += [folder.with_name(f"{name}.py"), folder / "__init__.py"]
    yield from (file for file in every if file.is_file())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
