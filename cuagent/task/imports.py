"""Find the user's own files that a task's file imports; their text is part of the task.

Files are read, never run. This module also tells users how to fix a failed import.

Not covered: names that are computed at run time, data files, and installed packages, which are
identified by their recorded versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from cuagent.task.source import parse_python, read_source

DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Name on PyPI of modules whose package has a different name."""


def advice(error: BaseException, path: Path) -> str:
    """Return advice to the user after importing the file `path` raised `error`; "" if there is
    none."""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return f"; the file is not in a package: create an empty __init__.py in {path.parent}"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    top = error.name.partition(".")[0]
    place = _above(path.parent, top)
    if place is not None and (missing := _without_init(path.parent, place)):
        return (
            f"; {top} is in {place}: create an empty __init__.py in {' and in '.join(missing)} "
            "to make it importable"
        )
    if top != error.name and _installed(top):
        return f"; the installed {top} has no such module: install the version that it needs"
    install = shlex.join([sys.executable, "-m", "pip", "install", DISTRIBUTIONS.get(top, top)])
    return f"; {top} is not installed in this Python: run {install}"


def _above(folder: Path, name: str) -> Path | None:
    """Return the nearest folder above `folder`, in the same git repository, that contains a module
    `name`."""
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return None
    while not (folder / ".git").exists():
        folder = folder.parent
        if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
            return folder
    return None


def _without_init(folder: Path, place: Path) -> list[str]:
    """Return the folders from below `place` down to `folder` that lack an __init__.py."""
    below = folder.relative_to(place).parts
    folders = [place.joinpath(*below[: n + 1]) for n in range(len(below))]
    return [str(f) for f in folders if not (f / "__init__.py").is_file()]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def package_of(path: Path) -> tuple[Path, str]:
    """Return the folder to import from, and the dotted name of the package that contains the file.

    The name is "" for a file outside any package.
    """
    folder = path.parent
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


def imported_digest(path: Path) -> str:
    """Return a sha256 over the files in its folder or package that `path` imports, also indirectly.

    It is "" if there are none.
    """
    texts = sorted(imported_texts(path).items())
    return hashlib.sha256(repr(texts).encode()).hexdigest() if texts else ""


def imported_texts(path: Path) -> dict[str, str]:
    """Return the text of each file that `path` imports from its folder or package, also indirectly.

    The keys are paths relative to the folder to import from.
    """
    root = package_of(path)[0]
    left, seen = [path], {path}
    while left:
        found = {file for file in _imports(left.pop(), root) if file.is_relative_to(root)} - seen
        seen |= found
        left += found
    # A link may lead to any file of the user, and an export publishes these texts.
    inside = {file for file in seen if file.resolve().is_relative_to(root.resolve())}
    return {str(file.relative_to(root)): _text(file) for file in inside - {path}}


def _imports(path: Path, root: Path) -> Iterator[Path]:
    """Yield the files under `root` that the file `path` imports, and the __init__.py of their
    packages."""
    try:
        tree = parse_python(_text(path))
    except SyntaxError:  # importing it will raise the error
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
    """Yield the existing files in `folder` that importing the dotted name `names` would run."""
    every = [folder / "__init__.py"]
    for name in names:
        folder = folder / name
        every += [folder.with_name(f"{name}.py"), folder / "__init__.py"]
    yield from (file for file in every if file.is_file())


def _text(path: Path) -> str:
    try:
        content = io.BytesIO(read_source(path))
    except OSError:
        return ""
    return io.TextIOWrapper(content, encoding="utf-8", errors="replace").read()
