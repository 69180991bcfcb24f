"""Check the names in generated Triton kernels, which Python looks up at the first call only."""

from __future__ import annotations

import ast
import builtins


def unknown_names(module: str) -> set[str]:
    """Return the names that the Triton kernels of a module read and that nothing defines."""
    tree = ast.parse(module)
    known = set(dir(builtins))
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            known.add(statement.name)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            known |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
    kernels = [f for f in tree.body if isinstance(f, ast.FunctionDef) and _is_kernel(f)]
    return {name for kernel in kernels for name in _read(kernel) if name not in known}


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).startswith("triton.jit") for each in function.decorator_list)


def _read(kernel: ast.FunctionDef) -> set[str]:
    names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {argument.arg for argument in kernel.args.args}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - own
