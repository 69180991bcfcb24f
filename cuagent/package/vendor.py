"""Rewrite imports of the kernel loader to use the copy that travels with the package."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import cuagent.kernels
from cuagent.attempt import MODULE

LOADER = "_kernels"
"""Folder name of the copy, next to `model_new.py`."""
ORIGINAL = "cuagent.kernels"
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def loader_files(folder: str, source: str) -> dict[str, str]:
    """Return `model_new.py` with rewritten loader imports and the files of the copy, by path.

    `folder` is the folder of both; `source` is the text of `model_new.py`.
    """
    text, used = vendored(source)
    place = Path(cuagent.kernels.__file__).parent
    copies = {f"{folder}/{LOADER}/{f.name}": f.read_text("utf-8") for f in place.glob("*.py")}
    return {f"{folder}/{MODULE}": text} | (copies if used else {})


def vendored(source: str) -> tuple[str, bool]:
    """Return `model_new.py` with rewritten loader imports, and True if it had any.

    Only the import statements change, so that the exported code is the judged code. A statement
    that shares its line with others is replaced in place.
    """
    # As Python counts lines; str.splitlines would also split at a form feed in a comment.
    lines = [line.encode() for line in LINE.findall(source)]
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    changed = False
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        imports = _loader_imports(node)
        if imports is None:
            continue
        assert node.end_lineno is not None
        first, last = node.lineno - 1, node.end_lineno - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        if before.strip() or after.partition(b"#")[0].strip():
            text = "; ".join([*imports.others, f"from {imports.package}"]).encode()
        else:
            block = [*imports.others, *imports.block()]
            text = f"\n{before.decode()}".join(block).encode()
        lines[first : last + 1] = [before + text + after]
        changed = True
    return b"".join(lines).decode(), changed


@dataclass(frozen=True)
class _Imports:
    """Imports of one statement: those from the loader, and the others."""

    package: str
    path: str
    original: str
    others: tuple[str, ...] = ()
    """Statements that import the rest."""

    def block(self) -> list[str]:
        return [
            "try:  # as part of its package",
            f"    from {self.package}",
            "except ImportError:",
            "    try:  # by path, with its folder on sys.path",
            f"        {self.path}",
            "    except ImportError:",
            f"        {self.original}",
        ]


def _loader_imports(node: ast.Import | ast.ImportFrom) -> _Imports | None:
    """Return what a statement imports from the loader; None if it imports nothing of it."""
    if isinstance(node, ast.ImportFrom) and node.module == ORIGINAL and not node.level:
        names = ", ".join(ast.unparse(alias) for alias in node.names)
        return _Imports(
            f".{LOADER} import {names}",
            f"from {LOADER} import {names}",
            f"from {ORIGINAL} import {names}",
        )
    if isinstance(node, ast.ImportFrom) and node.module == "cuagent" and not node.level:
        ours = [alias for alias in node.names if alias.name == "kernels"]
        other = [ast.unparse(alias) for alias in node.names if alias.name != "kernels"]
        others = tuple(f"from cuagent import {name}" for name in other)
    elif isinstance(node, ast.Import):
        ours = [alias for alias in node.names if alias.name == ORIGINAL and alias.asname]
        other = [ast.unparse(alias) for alias in node.names if alias not in ours]
        others = tuple(f"import {name}" for name in other)
    else:
        return None
    if not ours:
        return None
    aliases = [alias.asname or alias.name for alias in ours]
    return _Imports(
        f". import {', '.join(f'{LOADER} as {name}' for name in aliases)}",
        f"import {', '.join(f'{LOADER} as {name}' for name in aliases)}",
        f"import {', '.join(f'{ORIGINAL} as {name}' for name in aliases)}",
        others,
    )
