"""The files beside the user's that a task imports: what they say is part of the task.

Read, never run. Also what a user can do where an import fails. Not covered: names that are put
together at run time, data files, and what is installed, which the versions stand for.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""What pip calls a package whose module has another name."""


def advice(error: BaseException, path: Path) -> str:
    """What to do where importing the file `path` raised `error`; "" where nothing is known."""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return f"; the file is in no package: put an empty __init__.py into {path.parent}"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    top = error.name.partition(".")[0]
    place = _above(path.parent, top)
    if place is not None and (missing := _without_init(path.parent, place)):
        return (
            f"; {top} lies in {place}, from where it can be imported once there is an empty "
            f"__init__.py in {' and in '.join(missing)}"
        )
    if top != error.name and _installed(top):
        return f"; the installed {top} has no such module: does this file need another version?"
    install = shlex.join([sys.executable, "-m", "pip", "install", DISTRIBUTIONS.get(top, top)])
    return f"; {top} is not installed for this Python: {install}"


def _above(folder: Path, name: str) -> Path | None:
    """The nearest folder above `folder`, inside its repository, that holds a module `name`."""
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return None
    while not (folder / ".git").exists():
        folder = folder.parent
        if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
            return folder
    return None


def _without_init(folder: Path, place: Path) -> list[str]:
    """The folders from `place` down to `folder` that are no packages."""
    below = folder.relative_to(place).parts
    folders = [place.joinpath(*below[: n + 1]) for n in range(len(below))]
    return [str(f) for f in folders if not (f / "__init__.py").is_file()]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


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
