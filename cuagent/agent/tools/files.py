"""What the file tools share: paths confined to the work folder, and what the model has seen.

`skills/...` may be read as well; nothing else outside of the work folder exists for these tools.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from pathlib import Path

from cuagent.agent.run import Run
from cuagent.agent.tools.tool import ToolError

SKILLS, REFERENCE = "skills", "reference.py"
LARGEST = 4 << 20
"""Bytes of a file that is read as text."""
HIDDEN = frozenset({".outputs", "__pycache__", ".git"})


def confined(run: Run, path: str) -> Path:
    """The path in the work folder, links followed. Raises ToolError."""
    if "\0" in path:
        raise ToolError("the path holds a NUL character")
    work = run.work.resolve()
    target = (work / path).resolve()
    if not target.is_relative_to(work):
        raise ToolError(f"{path}: outside of your work folder; use paths relative to it")
    return target


def readable(run: Run, path: str) -> Path:
    """Like `confined`, and the skill's own files under `skills/`."""
    if Path(path).parts[:1] == (SKILLS,) and not (run.work / path).exists():
        root = Path(str(importlib.resources.files("cuagent.skills"))).resolve()
        target = root.joinpath(*Path(path).parts[1:]).resolve()
        if target.is_relative_to(root):
            return target
    return confined(run, path)


def shown(run: Run, path: Path) -> str:
    """The path as the model writes it."""
    work = run.work.resolve()
    return path.relative_to(work).as_posix() if path.is_relative_to(work) else path.name


def text_of(path: Path, name: str) -> str:
    """The text of a file. Raises ToolError."""
    try:
        if path.is_dir():
            raise ToolError(f"{name}: a folder; use glob to list it")
        if path.exists() and not path.is_file():
            raise ToolError(f"{name}: not a regular file")
        if path.stat().st_size > LARGEST:
            raise ToolError(f"{name}: larger than {LARGEST >> 20} MiB; use bash to look at parts")
        # newlines as they are: an edit must not change the lines that it does not touch
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{name}: not a text file") from error
    except FileNotFoundError as error:
        raise ToolError(f"{name}: no such file{_near(path)}") from error
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror or error}") from error


def mark_seen(run: Run, path: Path, text: str) -> None:
    """Remember that the model knows the file as it now is."""
    run.seen[path] = _digest(text)


def require_seen(run: Run, path: Path, name: str, text: str) -> None:
    """Raise ToolError unless the model may change the file and has seen it as it now is."""
    _refuse_reference(name)
    if path not in run.seen:
        raise ToolError(f"{name}: read it before you change it")
    if run.seen[path] != _digest(text):
        raise ToolError(f"{name}: it has changed since you read it; read it again")


def save(run: Run, path: Path, text: str, name: str) -> None:
    """Write a file whole or not at all. Raises ToolError."""
    _refuse_reference(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # never through a link that a command left there
            file.write(text.encode("utf-8", "replace"))
        partial.replace(path)
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror or error}") from error
    mark_seen(run, path, text)


def listed(run: Run, pattern: str) -> list[Path]:
    """Files of the work folder that match, sorted, without what is hidden. Raises ToolError."""
    if Path(pattern).parts[:1] == (SKILLS,) and not (run.work / SKILLS).exists():
        raise ToolError("the skill's files are not in your work folder; open them with read")
    work = run.work.resolve()
    try:
        found = sorted(work.glob(pattern))
    except (ValueError, NotImplementedError, IndexError) as error:
        raise ToolError(f"{pattern!r}: not a pattern relative to the work folder") from error
    return [
        path
        for path in found
        if path.is_file()
        and path.resolve().is_relative_to(work)
        and not HIDDEN.intersection(path.relative_to(work).parts)
    ]


def _refuse_reference(name: str) -> None:
    if name == REFERENCE:
        raise ToolError(f"{REFERENCE} is the task and stays as it is; write to model_new.py")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    names = sorted(p.name for p in path.parent.iterdir() if p.name not in HIDDEN)
    return f"; its folder holds {', '.join(names[:12])}" if names else "; its folder is empty"
