"""Find the installed packages that a task's file imports, to import them once in the fork server.

The fork server imports them before it forks: `transformers` takes five seconds, and a run opens
some fifteen processes. The user's own files are not imported there, because their code must run
only in the processes of the task.

Not covered: imports inside functions, and those of the files that the task imports.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from cuagent.library_folders import library_folders
from cuagent.task.source import parse_python

IMPORTED = frozenset({"torch", "numpy", "cuagent"})
"""Packages that the fork server always imports."""


def installed_imports(source: str) -> tuple[str, ...]:
    """Return the installed modules that a Python text imports, as `module` or `module:name`.

    A text that cannot be parsed gives ().
    """
    try:
        tree = parse_python(source)
    except SyntaxError:
        return ()
    found: dict[str, None] = {}
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                found |= {name.name: None for name in names if _is_installed(name.name)}
            case ast.ImportFrom(module=str(module), names=names, level=0) if _is_installed(module):
                found |= {f"{module}:{name.name}": None for name in names if name.name != "*"}
    return tuple(found)


def _is_installed(module: str) -> bool:
    """Return True if a module belongs to an installed package that the fork server does not import
    anyway.

    It is False for the user's own files.
    """
    package = module.partition(".")[0]
    if package in IMPORTED or package in sys.stdlib_module_names:
        return False
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    folders = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *library_folders())
    places = {Path(folder).resolve() for folder in folders}
    return not places.isdisjoint(Path(spec.origin).resolve().parents)
