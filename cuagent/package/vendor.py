"""Rewrite imports of the kernel loader to use the copy that travels with the package."""

from __future__ import annotations

import ast
from pathlib import Path

import cuagent.kernels
from cuagent.attempt import MODULE

LOADER = "_kernels"
"""Folder name of the copy, next to `model_new.py`."""
ORIGINAL = "cuagent.kernels"


def loader_files(folder: str, source: str) -> dict[str, str]:
    """Return `model_new.py` with rewritten loader imports and the files of the copy, by path.

    `folder` is the folder of both; `source` is the text of `model_new.py`.
    """
    text, used = vendored(source)
    place = Path(cuagent.kernels.__file__).parent
    copies = {f"{folder}/{LOADER}/{f.name}": f.read_text("utf-8") for f in place.glob("*.py")}
    return {f"{folder}/{MODULE}": text} | (copies if used else {})


def vendored(source: str) -> tuple[str, bool]:
    """Return `model_new.py` with rewritten loader imports, and True if it had any."""
    lines = source.splitlines(keepends=True)
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    changed = False
    for node in sorted(found, key=lambda n: n.lineno, reverse=True):
        names = _loader_names(node)
        if names is None:
            continue
        indent = " " * node.col_offset
        text = "\n".join(indent + line if line else "" for line in _block(names))
        lines[node.lineno - 1 : node.end_lineno] = [text + "\n"]
        changed = True
    return "".join(lines), changed


def _loader_names(node: ast.Import | ast.ImportFrom) -> str | None:
    """Return the names imported from the loader: `load as f`, or `* as NAME` for the module."""
    if isinstance(node, ast.ImportFrom) and node.module == ORIGINAL:
        return ", ".join(ast.unparse(alias) for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == "cuagent":
        modules = [alias for alias in node.names if alias.name == "kernels"]
    elif isinstance(node, ast.Import):
        modules = [alias for alias in node.names if alias.name == ORIGINAL and alias.asname]
    else:
        return None
    return f"* as {modules[0].asname or modules[0].name}" if modules else None


def _block(names: str) -> list[str]:
    if names.startswith("* as "):
        package, path = f"from . import {LOADER} as {names[5:]}", f"import {LOADER} as {names[5:]}"
        original = f"import {ORIGINAL} as {names[5:]}"
    else:
        package, path = f"from .{LOADER} import {names}", f"from {LOADER} import {names}"
        original = f"from {ORIGINAL} import {names}"
    return [
        "try:  # as part of its package",
        f"    {package}",
        "except ImportError:",
        "    try:  # by path, with its folder on sys.path",
        f"        {path}",
        "    except ImportError:",
        f"        {original}",
    ]
