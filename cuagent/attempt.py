"""Freeze a candidate as an Attempt before it is judged.

A candidate is a folder with `model_new.py` (class `ModelNew`) and `kernels/*.cu|*.cpp|*.h`, or a
single Python file in the KernelBench form. Freezing copies the text, so that the same text is
built, verified, timed and recorded even if the folder changes. Invariants: freezing reads only
regular files of the folder and follows no link; every name in an attempt is a path inside the
folder to which the attempt is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ENTRY = "ModelNew"
MODULE = "model_new.py"
KERNELS = "kernels"
SOURCES = (".cu", ".cpp")
HEADERS = (".h", ".hpp", ".cuh")
_NAMED = re.compile(r"""["']([\w./-]+\.(?:cu|cpp|h|hpp|cuh))["']""")
"""Pattern that finds quoted names of source and header files."""
LARGEST_FILE = 4 << 20
"""Largest size in bytes of one file of a candidate, which is source text and not data."""
LARGEST_ATTEMPT = 32 << 20
"""Largest size in bytes of all files of a candidate. The headers of CUTLASS have 15 MB."""
MOST_FILES = 2_000
"""Largest number of sources and headers in a candidate."""
MOST_ENTRIES = 10_000
"""Largest number of files and folders that freezing visits below kernels/."""
DEEPEST = 30
"""Largest nesting depth of folders below kernels/."""
LONGEST_PART = 255
"""Largest length in bytes of one component of a path; the limit of Linux."""
LONGEST_PATH = 1_000
"""Largest length in bytes of a path in an attempt."""


class AttemptError(Exception):
    """The candidate cannot be read, for example because a file is missing.

    The message is one line.
    """


class CandidateFault(AttemptError):
    """The candidate was read, but its files break a rule, so it is rejected.

    The message is one line.
    """


@dataclass(frozen=True)
class Attempt:
    """Frozen files of a candidate.

    Raises CandidateFault if a path leads out of the folder or cannot be written.
    """

    files: tuple[tuple[str, str], ...]
    """Relative POSIX path and content of each file, sorted by path."""
    display_name: str = field(default=MODULE, compare=False)
    """Name of the module's file before freezing renamed it to model_new.py; used in messages
    only.
    """

    def __post_init__(self) -> None:
        _require_writable(self.files)

    @property
    def digest(self) -> str:
        """sha256 over the names and contents of all files."""
        h = hashlib.sha256()
        for name, text in self.files:
            for part in (name.encode(), text.encode()):
                h.update(len(part).to_bytes(8, "little"))
                h.update(part)
        return h.hexdigest()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Paths of the source files that are compiled."""
        return tuple(name for name, _ in self.files if name.endswith(SOURCES))

    def with_display_name(self, text: str) -> str:
        """Return `text` with `display_name` in place of model_new.py."""
        return text if self.display_name == MODULE else text.replace(MODULE, self.display_name)

    def write(self, folder: Path) -> None:
        """Write the frozen files to `folder`, which must not contain another attempt."""
        for name, text in self.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())


def freeze(path: Path, *, needs_module: bool = True) -> Attempt:
    """Read a candidate folder or file and return it as an Attempt. Raises AttemptError.

    If `path` is a model_new.py next to kernels/, its whole folder is read. If `needs_module` is
    False, a folder with kernels/ may lack model_new.py, so that its kernels can be compiled before
    the module is written.

    Each file is opened once, relative to its folder's descriptor and without following links. So
    the hashed text is the judged text, and no file of another user is read.
    """
    if path.name == MODULE and _is_folder(path.parent / KERNELS):
        path = path.parent
    if not _is_folder(path):
        with _folder(path.parent, path.parent) as parent:
            return Attempt(((MODULE, _text(parent, path.name, path)),), str(path))
    with _folder(path, path) as folder:
        found: dict[str, str] = {}
        if _is_there(folder, MODULE):
            found[MODULE] = _text(folder, MODULE, path / MODULE)
        elif needs_module or not _is_there(folder, KERNELS):
            raise AttemptError(
                f"{path}: no {MODULE}; a candidate folder needs one with class {ENTRY}"
            )
        if _is_there(folder, KERNELS):
            _collect(folder, KERNELS, path, found, [])
        _reject_outside_sources(path, folder, found)
    return Attempt(tuple(sorted(found.items())))


def _collect(parent: int, name: str, root: Path, found: dict[str, str], seen: list[str]) -> None:
    """Add the sources and headers below `name`, a path relative to `root`, to `found` (path: text).

    `parent` is the descriptor of the folder that contains `name`. `seen` collects the paths of all
    entries; their number is limited.
    """
    if name.count("/") > DEEPEST:
        raise CandidateFault(
            f"{root / KERNELS}: folders nest more than {DEEPEST} levels deep; use fewer"
        )
    with _folder(Path(name).name, root / name, parent) as folder:
        with os.scandir(folder) as entries:
            kinds = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
        for entry, is_folder in kinds:
            inside = f"{name}/{entry}"
            seen.append(inside)
            if len(seen) > MOST_ENTRIES:
                raise CandidateFault(
                    f"{root / KERNELS}: more than {MOST_ENTRIES} files; remove some"
                )
            if is_folder:
                _collect(folder, inside, root, found, seen)
            elif Path(entry).suffix in SOURCES + HEADERS:
                found[inside] = _text(folder, entry, root / inside)
                _require_small(found, root)


def _require_small(found: dict[str, str], root: Path) -> None:
    if len(found) > MOST_FILES:
        raise CandidateFault(f"{root}: more than {MOST_FILES} sources and headers; remove some")
    if sum(map(len, found.values())) > LARGEST_ATTEMPT:
        raise CandidateFault(
            f"{root}: larger than {LARGEST_ATTEMPT >> 20} MiB in all; remove data files"
        )


def _reject_outside_sources(path: Path, folder: int, found: dict[str, str]) -> None:
    """Raise CandidateFault if a text in `found` names an existing source outside kernels/.

    Such a source would not be part of the attempt. `folder` is the descriptor of `path`.
    """
    named = {name for text in found.values() for name in _NAMED.findall(text)}
    for name in sorted(named):
        inside = f"{KERNELS}/{Path(name).name}"
        if name in found or inside in found or len(name) > LONGEST_PATH:
            continue
        for file in (name, Path(name).name):
            parts = PurePosixPath(file).parts
            if file.startswith("/") or ".." in parts or not _is_there(folder, file):
                continue
            raise CandidateFault(
                f"{path / file}: outside {KERNELS}/; only files in {KERNELS}/ are built and "
                f"judged: move it to {inside} and use that name"
            )


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _folder(name: str | Path, shown: Path, parent: int | None = None) -> Iterator[int]:
    """Context that opens a folder and yields its descriptor. Raises AttemptError with the path
    `shown`.

    `parent` is the descriptor of the folder that `name` is relative to. With it, `name` must not be
    a link.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if parent is not None:
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except OSError as error:
        raise _fault(shown, error, parent, str(name)) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fault(shown: Path, error: OSError, parent: int | None, name: str) -> AttemptError:
    """Return the AttemptError for a file or folder that could not be opened with `error`."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=parent is None).st_mode
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISLNK(mode):
        return CandidateFault(f"{shown}: a symbolic link; replace it by the file or folder itself")
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return CandidateFault(f"{shown}: not a regular file; a candidate is source text")
    return AttemptError(f"{shown}: {error.strerror or error}")


def _text(folder: int, name: str, shown: Path) -> str:
    """Return the text of a regular file in `folder`. Raises AttemptError."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _fault(shown, error, folder, name) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CandidateFault(f"{shown}: not a regular file; a candidate is source text")
        if _may_be_foreign(status, os.fstat(folder)):
            raise CandidateFault(
                f"{shown}: a hard link to a file of another user; replace it by a copy"
            )
        try:
            content = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise CandidateFault(f"{shown}: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise CandidateFault(f"{shown}: larger than {LARGEST_FILE >> 20} MiB; remove data from it")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 text ({error.reason} at byte {error.start})"
        raise CandidateFault(f"{shown}: {fault}; save it as UTF-8") from error


def _may_be_foreign(file: os.stat_result, folder: os.stat_result) -> bool:
    """Return True if a file may be a hard link that a user made to another user's file.

    Hard links between files of one owner are common and harmless: package managers, `cp -l` and
    stores that deduplicate files make them.
    """
    trusted = folder.st_uid in (0, os.geteuid(), file.st_uid)
    return file.st_nlink > 1 and not trusted


def _require_writable(files: tuple[tuple[str, str], ...]) -> None:
    """Raise CandidateFault if `Attempt.write` could not write every file inside its folder."""
    taken: set[str] = set()
    for name, text in files:
        if not (isinstance(name, str) and isinstance(text, str)):
            raise CandidateFault("a file of the attempt is not text")
        parts = name.split("/")
        try:
            raw = name.encode()
            text.encode()
        except UnicodeEncodeError as error:
            raise CandidateFault(f"{name[:80]!a}: not Unicode text") from error
        wrong = any(part in ("", ".", "..") for part in parts) or not name.isprintable()
        long = len(raw) > LONGEST_PATH or any(len(p.encode()) > LONGEST_PART for p in parts)
        if wrong or long:
            raise CandidateFault(f"{name[:80]!a}: not a valid file name in an attempt; rename it")
        taken.add(name)
    for name in taken:
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if parents & taken or name.startswith(f"{MODULE}/"):
            raise CandidateFault(f"{name[:80]!a}: below a file instead of a folder; rename it")
