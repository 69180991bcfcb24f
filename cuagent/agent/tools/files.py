"""Access files of the work folder for the file tools, and record which texts the model has seen.

`skills/...` can be read as well; the tools reach no other file outside of the work folder. Commands
of the agent may change the folder while a tool reads it. So a file is always opened by its name
relative to the work folder's descriptor, and no link is followed (`cuagent.sandbox.beneath`).
"""

from __future__ import annotations

import errno
import hashlib
import importlib.resources
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from cuagent.agent.run import Run
from cuagent.agent.tools.tool import ToolError
from cuagent.sandbox.beneath import (
    files_beneath,
    list_beneath,
    open_folder,
    read_beneath,
    write_beneath,
)

SKILLS, REFERENCE = "skills", "reference.py"
LARGEST = 4 << 20
"""Largest size in bytes of a file that is read as text."""
HIDDEN = frozenset({".outputs", "__pycache__", ".git"})
"""Names of folders that listings omit."""
LINK = (
    "a symbolic link, or a path through one, which may lead outside of your work folder; the file "
    "tools follow no links: name the file itself, or use bash"
)


def confined(run: Run, path: str) -> str:
    """Return `path` relative to the work folder; "" for the folder itself.

    Raises ToolError if `path` is outside of the folder.
    """
    if "\0" in path:
        raise ToolError("the path contains a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ToolError("the path contains a character that no file name can have") from error
    # Purely textual: no link is ever followed, so `a/..` is always the folder itself.
    target = os.path.normpath(run.work.resolve() / path)
    for work in (run.work.resolve(), run.work.absolute()):
        if Path(target).is_relative_to(work):
            name = Path(target).relative_to(work).as_posix()
            return "" if name == "." else name
    raise ToolError(f"{path}: outside of your work folder; use paths relative to it")


@contextmanager
def opened_work(run: Run) -> Iterator[int]:
    """Open the work folder and yield its descriptor. Raises ToolError if this fails."""
    try:
        work = open_folder(run.work)
    except OSError as error:
        raise ToolError(f"your work folder cannot be opened: {error.strerror}") from error
    try:
        yield work
    finally:
        os.close(work)


def text_of(run: Run, name: str) -> str:
    """Return the text of a file of the work folder. Raises ToolError."""
    text = text_if_there(run, name)
    if text is None:
        raise ToolError(f"{name}: no such file{_near(run, name)}")
    return text


def text_if_there(run: Run, name: str) -> str | None:
    """Return the text of a file of the work folder; None if it does not exist. Raises ToolError."""
    try:
        with opened_work(run) as work:
            data = read_beneath(work, name, LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolError(f"{name or 'the path'}: {_why(error)}") from error
    return _decoded(data, name)


def skill_text(run: Run, path: str) -> str | None:
    """Return the text of a file of cuagent's skill for a path under `skills/`; None for other
    paths.

    If the work folder has a file or folder `skills`, the result is always None. Raises ToolError.
    """
    if Path(path).parts[:1] != (SKILLS,) or os.path.lexists(run.work / SKILLS):
        return None
    root = Path(str(importlib.resources.files("cuagent.skills"))).resolve()
    target = root.joinpath(*Path(path).parts[1:]).resolve()
    if not target.is_relative_to(root):
        return None
    try:
        with target.open("rb") as file:
            return _decoded(file.read(LARGEST + 1), path)
    except OSError as error:
        raise ToolError(f"{path}: {_why(error)}") from error


def mark_seen(run: Run, name: str, text: str) -> None:
    """Record that the model has seen file `name` with this text."""
    run.seen[name] = _digest(text)


def require_seen(run: Run, name: str, text: str) -> None:
    """Raise ToolError if the file is the reference, or the model has not seen its current text."""
    _refuse_reference(name)
    if name not in run.seen:
        raise ToolError(f"{name}: read it before you change it")
    if run.seen[name] != _digest(text):
        raise ToolError(f"{name}: it has changed since you read it; read it again")


def save(run: Run, name: str, text: str) -> None:
    """Write a file atomically and mark it as seen. Raises ToolError."""
    _refuse_reference(name)
    try:
        with opened_work(run) as work:
            write_beneath(work, name, text.encode("utf-8", "replace"))
    except OSError as error:
        raise ToolError(f"{name}: {_why(error)}") from error
    mark_seen(run, name, text)


def listed(run: Run, pattern: str) -> list[tuple[str, int]]:
    """Return (name, size in bytes) of the files that match a glob pattern, sorted by name.

    Raises ToolError.
    """
    if Path(pattern).parts[:1] == (SKILLS,) and not (run.work / SKILLS).exists():
        raise ToolError("the skill's files are not in your work folder; open them with read")
    parts = PurePosixPath(pattern).parts
    if not parts or parts[0] == "/" or any("**" in part and part != "**" for part in parts):
        raise ToolError(f"{pattern!r}: not a pattern relative to the work folder")
    with opened_work(run) as work:
        found = sorted(files_beneath(work, HIDDEN))
    return [(name, size) for name, size in found if _fits(parts, name.split("/"))]


def _fits(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Return True if the path `names` matches the glob pattern `parts`, as in `Path.glob`.

    Both are split at "/": `parts` are the components of the pattern, `names` those of the path.
    """
    if parts[-1] == "**":  # it matches folders only
        return False
    states = {0}
    """Set of all k such that the first k `parts` of the pattern match the names that were read so
    far.
    """
    for name in names:
        for state in sorted(states):
            while state < len(parts) and parts[state] == "**":  # it also matches no folder
                state += 1
                states.add(state)
        states = {
            after
            for state in states
            if state < len(parts)
            for after in _next(state, parts[state], name)
        }
    return len(parts) in states


def _next(state: int, part: str, name: str) -> tuple[int, ...]:
    if part == "**":
        return (state,)
    return (state + 1,) if fnmatchcase(name, part) else ()


def _decoded(data: bytes, name: str) -> str:
    if len(data) > LARGEST:
        raise ToolError(f"{name}: larger than {LARGEST >> 20} MiB; use bash to read parts of it")
    try:
        # keep the newlines: an edit must not change other lines
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{name}: not a text file") from error


def _why(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return LINK
    if error.errno == errno.EISDIR:
        return "a folder; use glob to list it"
    if error.errno == errno.ENXIO:
        return "not a regular file"
    return error.strerror or str(error)


def _refuse_reference(name: str) -> None:
    if name == REFERENCE:
        raise ToolError(f"{REFERENCE} is the task and must not change; write to model_new.py")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _near(run: Run, name: str) -> str:
    try:
        with opened_work(run) as work:
            found = list_beneath(work, name.rpartition("/")[0])
    except OSError:
        return ""
    names = sorted(entry.name for entry in found if entry.name not in HIDDEN)
    return f"; its folder holds {', '.join(names[:12])}" if names else "; its folder is empty"
