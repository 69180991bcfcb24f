"""Collect the definitions that a class of the user's script needs, from the live process.

Each name is looked up in the running module. Classes and functions are copied as source text,
imports are written again, and plain data is written as its value at the time of the capture. So the
script's own work (argument parsing, data loading) is not part of the task.
Not covered: names that code looks up in globals().
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.util
import inspect
import re
import symtable
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cuagent.capture.encode import TOKEN, Encoder, Unsupported

TOKENS = re.compile("\x00([^\x01]*)\x01([^\x02]*)\x02")
LONGEST_VALUE = 20_000
"""Largest number of characters of one piece of plain data that is embedded."""


def is_library(module: str) -> bool:
    """Return True if the module with this name belongs to the standard library, an installed
    package or cuagent."""
    if module == "__main__":
        return False
    if module.partition(".")[0] in (*sys.stdlib_module_names, "torch", "cuagent"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return True
    parts = Path(file).parts
    installed = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or any(Path(file).is_relative_to(folder) for folder in installed if folder)
    )


class Sources:
    """Source texts of the user's modules, reduced to the definitions that a captured module
    needs."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[tuple[int, str], str]] = {}
        self._bindings: dict[str, dict[str, list[ast.stmt]]] = {}
        self._lines: dict[str, list[str]] = {}
        self._future: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._encode = Encoder(is_library)
        self.missing: list[str] = []
        """Globals and module sources that could not be written to the task, by name."""

    def need_tokens(self, text: str) -> None:
        """Collect the definition of every class and function whose token occurs in `text`."""
        for module, name in TOKENS.findall(text):
            if not is_library(module):
                self.need(module, name.partition(".")[0])

    def need(self, module: str, name: str) -> None:
        """Collect the definition of a top-level name of a user's module, and of all names that this
        definition uses."""
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        self._read(module)
        namespace = vars(sys.modules[module])
        if name not in namespace or module not in self._bindings:
            return
        value, statements = namespace[name], self._bindings[module].get(name, [])
        defined = [s for s in statements if isinstance(s, ast.ClassDef | ast.FunctionDef)]
        imported = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
        own = getattr(value, "__module__", None) == module
        if defined and (own or not imported):
            self._add_statement(module, _matching(defined, value))
        elif imported or isinstance(value, types.ModuleType):
            self._add_import(module, name, value, imported)
        elif not hasattr(builtins, name) or statements:
            self._add_value(module, name, value, statements)

    def resolve(
        self, text: str, *, in_modules: bool = False, of: str | None = None
    ) -> tuple[str, list[str]]:
        """Replace the tokens (`encode.TOKEN`) in a text by names; return (text, import lines that
        it needs).

        `in_modules`: True if the task stores the user's modules in the dict `_modules`. `of`: the
        user's module that contains the text; None for the task itself.
        """
        imports: set[str] = set()
        modules = self.modules()

        def name(match: re.Match[str]) -> str:
            module, qualified = match.groups()
            if module in modules and of not in (None, module):
                return f'__import__("sys").modules["{module}"].{qualified}'
            if module in modules:
                return f'_modules["{module}"].{qualified}' if in_modules else qualified
            imports.add(f"import {module}")
            return f"{module}.{qualified}"

        return TOKENS.sub(name, text), sorted(imports)

    def modules(self) -> list[str]:
        """Return the names of the user's modules, sorted so that each follows the modules that it
        imports."""
        order: list[str] = []
        for module in self._pieces:
            self._visit(module, order, [])
        return order

    def _visit(self, module: str, order: list[str], path: list[str]) -> None:
        if module in order or module in path:
            return
        text = "\n".join(part for part in self._pieces[module].values())
        for other in self._pieces:
            imports = rf"^\s*(from|import) {re.escape(other)}\b"
            named = f"\x00{other}\x01" in text and other != module
            if named or re.search(imports, text, re.MULTILINE):
                self._visit(other, order, [*path, module])
        order.append(module)

    def text(self, module: str) -> str:
        """Return the source text of a user's module, reduced to the collected definitions."""
        parts = [part for _, part in sorted(self._pieces[module].items())]
        body = "\n".join(
            f"\n\n{part}\n" if part.startswith(("class ", "def ", "@", "async ")) else part
            for part in parts
        )
        body, imports = self.resolve(body, of=module)
        return "\n".join([*imports, re.sub(r"\n{4,}", "\n\n\n", body)]).strip("\n")

    def has_future_annotations(self, module: str) -> bool:
        """Return True if the module has `from __future__ import annotations`."""
        return module in self._future

    def _read(self, module: str) -> None:
        if module in self._lines:
            return
        file = getattr(sys.modules[module], "__file__", None)
        try:
            source = Path(file or "").read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            self.missing.append(f"the source of {module}")
            self._lines[module] = []
            return
        self._lines[module] = source.splitlines()
        self._bindings[module] = {}
        for statement in _statements(tree.body):
            for name in _bound(statement):
                self._bindings[module].setdefault(name, []).append(statement)
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self._future.add(module)

    def _add(self, module: str, line: int, text: str) -> None:
        self._pieces.setdefault(module, {})[line, text] = text

    def _add_statement(self, module: str, statement: ast.stmt) -> None:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        lines = self._lines[module][first - 1 : statement.end_lineno]
        self._need_names(module, statement)
        self._add(module, first, textwrap.dedent("\n".join(lines)))

    def _need_names(self, module: str, node: ast.AST) -> None:
        namespace = vars(sys.modules[module])
        for name in _global_names(ast.unparse(node)):
            self.need(module, name)
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                held = namespace.get(part.value.id)
                if isinstance(held, types.ModuleType) and not is_library(held.__name__):
                    self.need(held.__name__, part.attr)

    def _add_import(
        self, module: str, name: str, value: Any, statements: list[ast.Import | ast.ImportFrom]
    ) -> None:
        line = statements[0].lineno if statements else 0
        if isinstance(value, types.ModuleType):
            self._pieces.setdefault(module, {})
            if not is_library(value.__name__):
                self._pieces.setdefault(value.__name__, {})
            as_ = "" if value.__name__ == name else f" as {name}"
            dotted = value.__name__.partition(".")
            if dotted[1] and dotted[0] == name:
                as_ = ""
            for statement in statements:  # `import a.b` binds `a`
                if isinstance(statement, ast.Import):
                    for alias in statement.names:
                        if alias.asname is None and alias.name.partition(".")[0] == name:
                            self._add(module, statement.lineno, f"import {alias.name}")
            self._add(module, line, f"import {value.__name__}{as_}")
            return
        source = next((s for s in statements if isinstance(s, ast.ImportFrom)), None)
        origin, original = getattr(value, "__module__", None), name
        if source is not None:
            package = getattr(sys.modules[module], "__package__", None) or ""
            dots = "." * source.level + (source.module or "")
            origin = importlib.util.resolve_name(dots, package) if source.level else dots
            names = (a.name for a in source.names if (a.asname or a.name) == name)
            original = next(names, name)
        if origin is None:
            return
        if not is_library(origin):
            self.need(origin, original)
        as_ = "" if original == name else f" as {name}"
        self._add(module, line, f"from {origin} import {original}{as_}")

    def _add_value(self, module: str, name: str, value: Any, statements: list[ast.stmt]) -> None:
        line = statements[0].lineno if statements else 0
        try:
            if isinstance(value, argparse.Namespace):
                text = f"__import__('argparse').Namespace(**{self._encode(vars(value))})"
            else:
                text = self._encode(value)
            if text == TOKEN.format(module, name):
                raise Unsupported("a class that a call makes, such as namedtuple")
            helpers = ("_object(", "_node(", "_unpickled(")
            if len(text) > LONGEST_VALUE or any(helper in text for helper in helpers):
                raise Unsupported("large")
            self.need_tokens(text)
            if any(self._is_decorated(*found) for found in TOKENS.findall(text)):
                raise Unsupported("filled by decorators, which run again in the task")
            if f"\x00{module}\x01" in text:  # after the functions that it holds
                line = len(self._lines[module]) + 1
            self._add(module, line, f"{name} = {text}")
        except Unsupported:
            if not statements:
                self.missing.append(f"{module}.{name}")
                return
            for statement in statements:
                self._add_statement(module, statement)

    def _is_decorated(self, module: str, name: str) -> bool:
        """Return True if the definition of a user's class or function has decorators."""
        if is_library(module):
            return False
        self._read(module)
        statements = self._bindings.get(module, {}).get(name, [])
        return any(getattr(statement, "decorator_list", []) for statement in statements)


def _global_names(text: str) -> list[str]:
    """Return the global names that the source text of a statement reads."""
    found: dict[str, None] = {}
    tables = [symtable.symtable(text, "<statement>", "exec")]
    while tables:
        table = tables.pop(0)
        outermost = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (outermost or symbol.is_global()):
                found.setdefault(symbol.get_name())
        tables += table.get_children()
    return list(found)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those inside `if`, `with` and `try`."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _bound(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [statement.name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
            return [n.id for n in stored if isinstance(n.ctx, ast.Store)]
    return []


def _matching(statements: Sequence[ast.stmt], value: Any) -> ast.stmt:
    """Return the statement that defined `value`, found by the line numbers of its code; the last
    statement if none matches."""
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    parts = [value, *(vars(value).values() if isinstance(value, type) else ())]
    for part in parts:
        line = getattr(getattr(part, "__code__", None), "co_firstlineno", None)
        for statement in statements:
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(d.lineno for d in decorators)])
            if line is not None and first <= line <= (statement.end_lineno or first):
                return statement
    return statements[-1]
