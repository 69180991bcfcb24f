"""Extract the reference class and the definitions that it needs from the user's file.

A candidate includes this text and derives from the reference class. So constructor and parameter
names are the same by construction, and calls that its kernels do not cover (other shapes, training)
still run. Not covered: names used only through globals() or exec, and other files in the user's
folder, which the process that runs a candidate cannot read; `sibling_imports` finds their imports.
"""

from __future__ import annotations

import ast
from pathlib import Path


def needed_definitions(source: str, entry: str) -> str:
    """Return the text of the imports and top-level statements that class `entry` uses, in order."""
    tree = ast.parse(source)
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _defines(statement):
            defined.setdefault(name, []).append(statement)
    reached: set[int] = set()
    stack: list[ast.stmt] = list(defined.get(entry, []))
    while stack:
        statement = stack.pop()
        if id(statement) in reached:
            continue
        reached.add(id(statement))
        for name in _names(statement):
            stack += defined.get(name, [])
    used = {n for s in tree.body if id(s) in reached for n in _names(s)}
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    lines = source.splitlines()

    def is_needed(statement: ast.stmt) -> bool:
        return statement in future or id(statement) in reached or _imports_any(statement, used)

    parts = [
        "\n".join(lines[_first_line(statement) - 1 : statement.end_lineno])
        for statement in tree.body
        if is_needed(statement)
    ]
    imports = [isinstance(s, ast.Import | ast.ImportFrom) for s in tree.body if is_needed(s)]
    text = ""
    for part, is_import in zip(parts, imports, strict=True):
        text += part + "\n" if is_import else f"\n\n{part}\n"
    return text.strip("\n")


USUAL = {"torch": "torch", "F": "torch.nn.functional", "triton": "triton", "tl": "triton.language"}
"""Names that every candidate imports, with the module that each stands for."""


def rebound(text: str) -> set[str]:
    """Return the names that the top level of `text` defines, except imports of USUAL."""
    found: set[str] = set()
    for statement in ast.parse(text).body:
        found.update(_defines(statement))
        match statement:
            case ast.Import(names=names):
                pairs = [(a.asname or a.name.split(".")[0], a.name) for a in names]
                pairs = [(n, full if n != full.split(".")[0] else n) for n, full in pairs]
            case ast.ImportFrom(module=module, names=names):
                pairs = [(a.asname or a.name, f"{module}.{a.name}") for a in names]
            case _:
                continue
        found.update(name for name, full in pairs if USUAL.get(name) != full)
    return found


def sibling_imports(text: str, folder: Path) -> list[str]:
    """Return the names of the modules in `folder` that `text` imports, also inside of functions."""
    found: list[str] = []
    for statement in ast.walk(ast.parse(text)):
        match statement:
            case ast.ImportFrom(level=level, module=module) if level:
                found.append("." * level + (module or ""))
            case ast.ImportFrom(module=str(module)):
                found += [module] if _is_file_in(module, folder) else []
            case ast.Import(names=names):
                found += [alias.name for alias in names if _is_file_in(alias.name, folder)]
    return list(dict.fromkeys(found))


def _is_file_in(module: str, folder: Path) -> bool:
    top = folder / module.partition(".")[0]
    return top.with_suffix(".py").is_file() or (top / "__init__.py").is_file()


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _defines(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [statement.name]
        case ast.Import() | ast.ImportFrom():
            return []
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.If() | ast.Try():
            return [
                n.id
                for n in ast.walk(statement)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
    return []


def _names(statement: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}


def _imports_any(statement: ast.stmt, used: set[str]) -> bool:
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    names = {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    return bool(names & used) or "*" in names
