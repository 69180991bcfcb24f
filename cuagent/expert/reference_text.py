"""The part of the user's file that a candidate carries: the reference class and what it needs.

A candidate derives from the reference, so that its constructor, its parameters and their names are
the same by construction, and so that whatever its kernels do not cover (other shapes, training)
still runs. Not covered: names that are reached only through globals() or exec, and files beside the
user's, which `sibling_imports` finds: the process that runs a candidate cannot read them.
"""

from __future__ import annotations

import ast
from pathlib import Path


def needed_definitions(source: str, entry: str) -> str:
    """Imports, and the top-level statements that `entry` reaches by name, in their order."""
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

    def _kept(statement: ast.stmt) -> bool:
        wanted = id(statement) in reached or _imports_any(statement, used)
        return wanted and statement not in future

    kept = [
        "\n".join(lines[_first_line(statement) - 1 : statement.end_lineno])
        for statement in tree.body
        if _kept(statement)
    ]
    imports = [isinstance(s, ast.Import | ast.ImportFrom) for s in tree.body if _kept(s)]
    text = ""
    for part, is_import in zip(kept, imports, strict=True):
        text += part + "\n" if is_import else f"\n\n{part}\n"
    return text.strip("\n")


def sibling_imports(text: str, folder: Path) -> list[str]:
    """Modules that `text` imports, at the top or in a function, from files in `folder`."""
    found: list[str] = []
    for statement in ast.walk(ast.parse(text)):
        match statement:
            case ast.ImportFrom(level=level, module=module) if level:
                found.append("." * level + (module or ""))
            case ast.ImportFrom(module=str(module)):
                found += [module] if _is_beside(module, folder) else []
            case ast.Import(names=names):
                found += [alias.name for alias in names if _is_beside(alias.name, folder)]
    return list(dict.fromkeys(found))


def _is_beside(module: str, folder: Path) -> bool:
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
