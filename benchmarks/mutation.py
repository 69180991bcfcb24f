"""Run tests on mutants of one module, and print the mutants that survive.

    python benchmarks/mutation.py cuagent/score.py tests/test_score.py [--sample 25] [--seed 7]

A mutant differs from the module in one place: a comparison, an arithmetic operator, a constant, a
condition, a returned value, a reduction (`max` becomes `min`) or a deleted call. Each mutant runs
in a fork, so the libraries that the tests import are imported only once. A fork ends at the first
failure, or after 20 seconds plus six times the duration of the tests without a mutant. Not covered:
code that a test runs in a new interpreter, which imports the unchanged module.
docs/research/mutation.md has results.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
CALLS = {
    "amax": "amin", "amin": "amax", "max": "min", "min": "max", "any": "all", "all": "any",
    "maximum": "minimum", "minimum": "maximum", "clamp_min": "clamp_max", "sum": "mean",
    "floor": "ceil", "ceil": "floor",
}  # fmt: skip


def unchanged(tree: ast.AST) -> set[ast.AST]:
    """Return the syntax nodes that are not mutated, because no test should depend on them:
    docstrings, messages, annotations."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns", "decorator_list", "exc"):
            value = getattr(node, name, None)
            for part in value if isinstance(value, list) else [value] if value else []:
                found |= set(ast.walk(part))
        is_guard = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        if is_guard or isinstance(node, ast.JoinedStr):
            found |= set(ast.walk(node))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found |= {node, node.value}
    return found


def replacements(node: Any) -> Iterator[ast.AST]:
    """Yield the mutated forms of a syntax node; each differs from the node in one point."""
    made = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS[type(operator)]:
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            made.op = OPERATORS[type(node.op)]()
            yield made
        case ast.BoolOp():
            made.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield made
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
            yield made.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 2 or 1.0)
        case ast.Return() if node.value and ast.unparse(node.value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.IfExp() | ast.If():
            made.test = ast.UnaryOp(ast.Not(), made.test)
            yield made
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in CALLS:
            setattr(
                made.func, "attr" if isinstance(made.func, ast.Attribute) else "id", CALLS[name]
            )
            yield made
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break():
            yield ast.Pass()


class Mutants:
    """Sequence of all mutants of one source file; `mutants[n]` is (code object, description)."""

    def __init__(self, path: Path) -> None:
        self.path, self.tree = path, ast.parse(path.read_text())
        left = unchanged(self.tree)
        self.sites = [
            (at, n)
            for at, node in enumerate(ast.walk(self.tree))
            if node not in left
            for n, _ in enumerate(replacements(node))
        ]

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, number: int) -> tuple[CodeType, str]:
        at, n = self.sites[number]
        tree = copy.deepcopy(self.tree)
        old: Any = [*ast.walk(tree)][at]
        new = [*replacements(old)][n]
        ast.copy_location(new, old)
        for parent in [*ast.walk(tree)]:
            for name, value in ast.iter_fields(parent):
                if value is old:
                    setattr(parent, name, new)
                elif isinstance(value, list) and old in value:
                    value[value.index(old)] = new
        ast.fix_missing_locations(tree)
        shown = [ast.unparse(node).partition("\n")[0][:80] for node in (old, new)]
        code = compile(tree, str(self.path), "exec")
        return code, f"{self.path}:{old.lineno}: {shown[0]}  ->  {shown[1]}"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that runs the mutated `code` as the module `name`."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return the import specification of the mutated module; None for other modules."""
        if fullname != self.name:
            return None
        where = str(ROOT / self.path)
        return importlib.util.spec_from_file_location(fullname, where, loader=self)

    def create_module(self, spec: Any) -> None:
        """Return None, so that the import system creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated code in the namespace of the new module."""
        exec(self.code, vars(module))


def module_name(path: Path) -> str:
    """Return the dotted name under which cuagent imports the file `path`."""
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "cuagent" else ("cuagent", *parts))


def outcome(finder: Finder | None, tests: Sequence[str], limit_s: float, names: Path) -> int:
    """Run the tests in a fork; return their exit code, or -9 if the time limit ended them.

    `finder`: import hook of the mutant; None: the tests run without a mutant, and the names of all
    imported modules are written to the file `names`.
    """
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if finder is not None:
            sys.meta_path.insert(0, finder)
        import pytest

        code = 98
        with suppress(BaseException):
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-n", "0", *tests]))
        if finder is None:
            names.write_text("\n".join(sys.modules))
        os._exit(code)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


def import_libraries(names: Sequence[str]) -> None:
    """Import those of the named modules that belong to installed packages, but not cuagent and its
    tests."""
    installed = (sys.prefix, sys.base_prefix)
    for name in names:
        if name.partition(".")[0] in ("cuagent", "__main__"):
            continue
        with suppress(Exception):
            spec = importlib.util.find_spec(name)
            if spec is not None and str(spec.origin).startswith(installed):
                importlib.import_module(name)


def main() -> None:
    """Run the tests on a random sample of mutants, and print the mutants that no test detects."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    os.chdir(ROOT)
    names = Path(os.environ.get("TMPDIR", "/tmp"), f"mutation-{os.getpid()}")
    start = time.monotonic()
    if outcome(None, given.tests, 900, names):
        sys.exit("the tests fail without a mutant")
    limit_s = 20 + 6 * (time.monotonic() - start)
    import_libraries(names.read_text().split("\n"))
    names.unlink()
    mutants = Mutants(given.module)
    chosen = random.Random(given.seed).sample(range(len(mutants)), min(given.sample, len(mutants)))
    survivors = 0
    for number in chosen:
        code, shown = mutants[number]
        finder = Finder(module_name(given.module), given.module, code)
        if outcome(finder, given.tests, limit_s, names) == 0:
            survivors += 1
            print(shown, flush=True)
    killed = len(chosen) - survivors
    print(f"{given.module}: {killed} of {len(chosen)} killed; {len(mutants)} mutants in all")


if __name__ == "__main__":
    main()
