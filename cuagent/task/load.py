"""Make a Task from the user's arguments by reading the file, without running it.

Two forms: `path.py` with `Model`, `get_inputs` and `get_init_inputs` (KernelBench), and
`path.py:ClassName` with `--inputs` for any other module. Errors that the text shows (a missing
file, class or `get_inputs`, a syntax error) are reported here, before torch is imported.
`cuagent.task.reference` checks that the module runs.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import io
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from cuagent.task.imports import imported_digest
from cuagent.task.settings import overrides
from cuagent.task.source import parse_python, read_source
from cuagent.task.spec import parse_init, parse_inputs
from cuagent.task.task import CONTRACT, Device, Precision, Task, TaskError

ENTRY = "Model"
"""Name of the class in a file of the KernelBench form."""
FOLDER_FILE, MANIFEST = "task.py", "manifest.json"
"""Names of two files in a captured folder: the task's file, and the record of the captured calls
(`cuagent.capture`)."""
Choice = TypeVar("Choice", bound=StrEnum)


def load_task(
    spec: str | Path,
    *,
    inputs: str | None = None,
    init: str | None = None,
    device: str = "auto",
    precision: str = "match",
) -> Task:
    """Read a task from `path.py`, `path.py:ClassName` or a captured folder.

    Without a name the class is `Model`, or the file's only class. Imports neither the file nor
    torch. `inputs` and `init` (grammar in `cuagent.task.spec`) override the file's own.
    `device="auto"` means CUDA if torch and the machine support it. Raises TaskError.
    """
    path, named = _split(str(spec))
    path = in_folder(path)
    source = _read(path)
    names = _names(source, path)
    entry = named or names.default()
    if not names.may_define(entry):
        raise TaskError(_missing(path, named, names))
    if inputs is None and not names.may_define("get_inputs"):
        raise TaskError(
            f"{path}: no get_inputs() and no --inputs; give the inputs of {entry}, "
            'for instance --inputs "f32[8,512]"'
        )
    if inputs is not None:
        parse_inputs(inputs)
    if init is not None:
        parse_init(init)
    return Task(
        path=path.resolve(),
        entry=entry,
        source=source,
        inputs=inputs,
        init=init,
        device=_device(device),
        precision=_choice(Precision, precision, "--precision"),
        imported=imported_digest(path.resolve()),
        settings=" ".join([CONTRACT, *(f"{name}={value}" for name, value in overrides())]),
    )


def in_folder(path: Path) -> Path:
    """Return the task's file if `path` is a captured folder, else `path`."""
    captured = (path / MANIFEST).is_file() and (path / FOLDER_FILE).is_file()
    return path / FOLDER_FILE if captured else path


def cuda_here() -> bool:
    """Return True if torch is built for CUDA and this machine has a GPU, without importing
    torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
        return False
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    version = Path(torch.origin).with_name("version.py").read_text()
    return re.search(r"^cuda\b.*= *None", version, re.MULTILINE) is None


class _Names:
    """Names that a Python file defines at its top level, found in its syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        self.classes: list[str] = []
        self.imported: list[str] = []
        """Imported names that may be classes, such as `Net` in `from package import Net`."""
        self.modules: dict[str, int] = {}
        """Line of the import of each top-level module, by the module's name."""
        self._others: set[str] = set()
        self._open = False
        self._collect(tree.body)

    def may_define(self, name: str) -> bool:
        """Return True if the file defines `name`, or may define it by `from x import *`."""
        return self._open or name in self.classes or name in self._others

    def default(self) -> str:
        """Return the name of the class to optimize if the user names none."""
        only = len(self.classes) == 1 and not self.may_define(ENTRY)
        return self.classes[0] if only else ENTRY

    def _collect(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    self.classes.append(name)
                case ast.FunctionDef(name=name):
                    self._others.add(name)
                    self._open |= name == "__getattr__"
                case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                    self._import(node, [alias.asname or alias.name for alias in aliases])
                case ast.Assign() | ast.AnnAssign() | ast.For() | ast.While() | ast.With():
                    self._others |= {
                        part.id
                        for part in ast.walk(node)
                        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                    }
                case ast.If(body=then, orelse=other):
                    self._collect(then + other)
                case ast.Try(body=then, orelse=other, finalbody=last, handlers=handlers):
                    self._collect(then + other + last)
                    for handler in handlers:
                        self._collect(handler.body)

    def _import(self, node: ast.ImportFrom | ast.Import, names: list[str]) -> None:
        self._open |= "*" in names
        self._others |= set(names)
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            modules = [node.module] if node.module and not node.level else []
            self.imported += [name for name in names if name[:1].isupper()]
        for module in modules:
            self.modules.setdefault(module.partition(".")[0], node.lineno)


def _split(spec: str) -> tuple[Path, str | None]:
    path, colon, name = spec.rpartition(":")
    if colon and name.isidentifier():
        return Path(path), name
    if colon and path.endswith(".py"):
        raise TaskError(f'{spec}: "{name}" is not a class name; write path.py:ClassName')
    return Path(spec), None


def _read(path: Path) -> str:
    if path.is_dir():
        raise TaskError(f"{path} is a folder; give the Python file in it that defines the module")
    if not path.exists():
        near = difflib.get_close_matches(path.stem, [f.stem for f in path.parent.glob("*.py")], n=1)
        hint = f"; did you mean {path.with_name(near[0])}.py?" if near else ""
        raise TaskError(f"{path}: no such file{hint}")
    try:
        return io.TextIOWrapper(io.BytesIO(read_source(path)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not a Python file (not UTF-8 text)") from error
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror or error})") from error


def _names(source: str, path: Path) -> _Names:
    try:
        return _Names(parse_python(source, str(path)))
    except SyntaxError as error:
        where = path if error.lineno is None else f"{path}:{error.lineno}"
        raise TaskError(f"{where}: syntax error: {error.msg}") from error


def _missing(path: Path, named: str | None, names: _Names) -> str:
    """Return the error message for a missing class, with the most similar name of an existing
    class."""
    classes = names.classes or names.imported
    for module, line in names.modules.items():
        if not (classes or _importable(module, path)):
            return f"{path}:{line}: defines no class, and imports {module}, which is not installed"
    if not classes:
        return f"{path}: defines no class; it must define the torch.nn.Module to optimize"
    if named is None:
        inputs = "" if names.may_define("get_inputs") else ' --inputs "f32[8,512]"'
        return (
            f"{path}: no class {ENTRY}; name the class after a colon, "
            f"for instance {path}:{classes[-1]}{inputs}"
        )
    near = difflib.get_close_matches(named, [*classes, *names.imported], n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(classes[:8])}"
    return f"{path}: no class {named}; {hint}"


def _importable(module: str, path: Path) -> bool:
    siblings = [path.with_name(f"{module}.py"), path.with_name(module)]
    return any(place.exists() for place in siblings) or importlib.util.find_spec(module) is not None


def _device(given: str) -> Device:
    if given == "auto":
        return Device.CUDA if cuda_here() else Device.CPU
    return _choice(Device, given, "--device", "auto")


def _choice(kind: type[Choice], given: str, flag: str, *others: str) -> Choice:
    try:
        return kind(given)
    except ValueError as error:
        choices = ", ".join([*others, *kind])
        raise TaskError(f"{flag} {given}: unknown value; choose one of {choices}") from error
