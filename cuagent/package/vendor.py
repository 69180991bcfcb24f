"""Rewrite imports of the kernel loader to use the copy that travels with the package."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import cuagent.kernels
from cuagent.attempt import MODULE
from cuagent.package.folder import ExportError
from cuagent.task.source import parse_python

LOADER = "_kernels"
"""Folder name of the copy, next to `model_new.py`."""
ORIGINAL = "cuagent.kernels"
PLAIN = "_cuagent_kernels"
"""Name of the copy in a source that imports the loader as `cuagent.kernels`."""
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def loader_files(folder: str, source: str) -> dict[str, str]:
    """Return the text of each file by path: `model_new.py` with rewritten loader imports, and the
    copy of the loader if it is used.

    All paths are below `folder`; `source` is the text of `model_new.py`.
    """
    text, used = vendored(source)
    place = Path(cuagent.kernels.__file__).parent
    copies = {f"{folder}/{LOADER}/{f.name}": f.read_text("utf-8") for f in place.glob("*.py")}
    return {f"{folder}/{MODULE}": text} | (copies if used else {})


def vendored(source: str) -> tuple[str, bool]:
    """Return `model_new.py` with rewritten loader imports, and True if it had any.

    Only the import statements change, so that the exported code is the judged code. A statement
    that shares its line with others is replaced in place. Raises ExportError for a text that is no
    Python, which no accepted attempt has.
    """
    source = source.removeprefix("\ufeff")  # a mark of the encoding, no part of the text
    # As Python counts lines; str.splitlines would also split at a form feed in a comment.
    lines = [line.encode() for line in LINE.findall(source)]
    try:
        tree = parse_python(source)
    except SyntaxError as error:
        raise ExportError(f"{MODULE} is no Python ({error.msg}, line {error.lineno})") from error
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    changed = False
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        imports = _loader_imports(node)
        if imports is None:
            continue
        assert node.end_lineno is not None
        first, last = node.lineno - 1, node.end_lineno - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        if before.strip() or after.partition(b"#")[0].strip():
            statements = [*imports.others, f"from {imports.package}", *imports.after]
            text = "; ".join(statements).encode()
        else:
            block = [*imports.others, *imports.block(), *imports.after]
            text = f"\n{before.decode()}".join(block).encode()
        lines[first : last + 1] = [before + text + after]
        changed = True
    return b"".join(lines).decode(), changed


@dataclass(frozen=True)
class _Imports:
    """Replacements for one import statement that imports from the loader.

    `package`, `path` and `original` import the loader's names: as part of the package (without its
    `from`), by path, and from cuagent.
    """

    package: str
    path: str
    original: str
    others: tuple[str, ...] = ()
    """Statements for the other imports of the statement."""
    after: tuple[str, ...] = ()
    """Statements that give the imported modules the names that the source uses."""

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
    """Return the replacements for a statement; None if it imports nothing from the loader."""
    if isinstance(node, ast.ImportFrom) and _below(node.module or "") and not node.level:
        names = ", ".join(ast.unparse(alias) for alias in node.names)
        part = (node.module or "").removeprefix(ORIGINAL)
        return _Imports(
            f".{LOADER}{part} import {names}",
            f"from {LOADER}{part} import {names}",
            f"from {ORIGINAL}{part} import {names}",
        )
    if isinstance(node, ast.ImportFrom) and node.module == "cuagent" and not node.level:
        ours = [alias for alias in node.names if alias.name == "kernels"]
        other = [ast.unparse(alias) for alias in node.names if alias.name != "kernels"]
        others = tuple(f"from cuagent import {name}" for name in other)
    elif isinstance(node, ast.Import):
        ours = [alias for alias in node.names if _below(alias.name)]
        if any(alias.name != ORIGINAL for alias in ours):
            return _submodules(node, ours)
        other = [ast.unparse(alias) for alias in node.names if alias not in ours]
        others = tuple(f"import {name}" for name in other)
    else:
        return None
    if not ours:
        return None
    plain = isinstance(node, ast.Import) and any(not alias.asname for alias in ours)
    aliases = [alias.asname or (PLAIN if plain else alias.name) for alias in ours]
    return _Imports(
        f". import {', '.join(f'{LOADER} as {name}' for name in aliases)}",
        f"import {', '.join(f'{LOADER} as {name}' for name in aliases)}",
        f"import {', '.join(f'{ORIGINAL} as {name}' for name in aliases)}",
        others,
        (f"cuagent = type('cuagent', (), {{'kernels': {PLAIN}}})",) if plain else (),
    )


def _below(module: str) -> bool:
    return module == ORIGINAL or module.startswith(f"{ORIGINAL}.")


def _submodules(node: ast.Import, ours: list[ast.alias]) -> _Imports | None:
    """Return the imports of a statement such as `import cuagent.kernels.calls as calls`.

    None if one has no `as` name, because the statement then needs all of cuagent.
    """
    if not all(alias.asname for alias in ours):
        return None
    others = tuple(f"import {ast.unparse(a)}" for a in node.names if a not in ours)
    (first, *rest) = ((*a.name.rpartition(".")[::2], a.asname) for a in ours)
    if rest:
        return None
    owner, name, alias = first
    part = owner.removeprefix(ORIGINAL)
    return _Imports(
        f".{LOADER}{part} import {name} as {alias}",
        f"from {LOADER}{part} import {name} as {alias}",
        f"from {ORIGINAL}{part} import {name} as {alias}",
        others,
    )
