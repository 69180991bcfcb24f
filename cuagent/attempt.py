"""The Attempt: one candidate, frozen by content before it is judged.

A folder with `model_new.py` (class `ModelNew`) and `kernels/*.cu|*.cpp|*.h`, or a single Python
file in the KernelBench form. Freezing copies it, so that what is built, verified, timed and
recorded is one and the same text, whatever happens to the folder meanwhile.
Invariants: freezing reads regular files of the folder only and follows no link; every name in an
attempt is a path inside the folder that it is written to.
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
"""Files as code names them: in quotes."""
LARGEST_FILE = 4 << 20
"""Bytes; a candidate is source text, not data."""
LARGEST_ATTEMPT = 32 << 20
"""Bytes of all files. CUTLASS's headers are 15 MB."""
MOST_FILES = 2_000
MOST_ENTRIES = 10_000
"""Files and folders that are looked at below kernels/."""
DEEPEST = 30
"""Levels of folders below kernels/."""
LONGEST_PART = 255
"""Bytes of one name in a path, as in Linux."""
LONGEST_PATH = 1_000


class AttemptError(Exception):
    """The candidate is not in a form that can be judged. One line."""


class CandidateFault(AttemptError):
    """The candidate is there, and its files must not be judged: a rejection. One line."""


@dataclass(frozen=True)
class Attempt:
    """The text of a candidate: relative POSIX path and content, sorted by path.

    Raises CandidateFault for a path that leads elsewhere or cannot be written.
    """

    files: tuple[tuple[str, str], ...]
    called: str = field(default=MODULE, compare=False)
    """What its author calls model_new.py; for messages only."""

    def __post_init__(self) -> None:
        _require_writable(self.files)

    @property
    def digest(self) -> str:
        """sha256 over names and contents."""
        h = hashlib.sha256()
        for name, text in self.files:
            for part in (name.encode(), text.encode()):
                h.update(len(part).to_bytes(8, "little"))
                h.update(part)
        return h.hexdigest()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Paths of the sources to build."""
        return tuple(name for name, _ in self.files if name.endswith(SOURCES))

    def in_its_words(self, text: str) -> str:
        """A message with the file's name as its author knows it."""
        return text if self.called == MODULE else text.replace(MODULE, self.called)

    def write(self, folder: Path) -> None:
        """Write the frozen text to `folder`, which must not hold another attempt."""
        for name, text in self.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())


def freeze(path: Path) -> Attempt:
    """Read a candidate folder or file; a model_new.py beside kernels/ is its folder's.

    Each file is opened once, by its folder's descriptor and without following links: what is
    hashed is what is judged, and no other user's file gets in. Raises AttemptError.
    """
    if path.name == MODULE and _is_folder(path.parent / KERNELS):
        path = path.parent
    if not _is_folder(path):
        with _folder(path.parent, path.parent) as parent:
            return Attempt(((MODULE, _text(parent, path.name, path)),), str(path))
    with _folder(path, path) as folder:
        if not _is_there(folder, MODULE):
            raise AttemptError(
                f"{path}: no {MODULE}; a candidate folder needs one with class {ENTRY}"
            )
        found = {MODULE: _text(folder, MODULE, path / MODULE)}
        if _is_there(folder, KERNELS):
            _collect(folder, KERNELS, path, found, [])
        _refuse_strays(path, folder, found)
    return Attempt(tuple(sorted(found.items())))


def _collect(parent: int, name: str, root: Path, found: dict[str, str], seen: list[str]) -> None:
    """Put the sources and headers below `name`, a path from `root`, into `found`."""
    if name.count("/") > DEEPEST:
        raise CandidateFault(f"{root / KERNELS}: folders in more than {DEEPEST} levels; use fewer")
    with _folder(Path(name).name, root / name, parent) as folder:
        with os.scandir(folder) as entries:
            kinds = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
        for entry, is_folder in kinds:
            inside = f"{name}/{entry}"
            seen.append(inside)
            if len(seen) > MOST_ENTRIES:
                raise CandidateFault(f"{root / KERNELS}: more than {MOST_ENTRIES} files; keep less")
            if is_folder:
                _collect(folder, inside, root, found, seen)
            elif Path(entry).suffix in SOURCES + HEADERS:
                found[inside] = _text(folder, entry, root / inside)
                _require_small(found, root)


def _require_small(found: dict[str, str], root: Path) -> None:
    if len(found) > MOST_FILES:
        raise CandidateFault(f"{root}: more than {MOST_FILES} sources and headers; keep less")
    if sum(map(len, found.values())) > LARGEST_ATTEMPT:
        raise CandidateFault(
            f"{root}: larger than {LARGEST_ATTEMPT >> 20} MiB in all; keep data out of it"
        )


def _refuse_strays(path: Path, folder: int, found: dict[str, str]) -> None:
    """Raises CandidateFault for a source that is named in the attempt and would be left behind."""
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
                f"{path / file}: lies outside {KERNELS}/, and only what lies there is built and "
                f"judged; move it to {inside} and name it so"
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
    """A descriptor of a folder. Below `parent` it must not be a link. Raises CandidateFault."""
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
    """The message for what could not be opened."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=parent is None).st_mode
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISLNK(mode):
        return CandidateFault(f"{shown}: a link; put the file or folder itself there")
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return CandidateFault(f"{shown}: not a regular file; a candidate is source text")
    return AttemptError(f"{shown}: {error.strerror or error}")


def _text(folder: int, name: str, shown: Path) -> str:
    """The text of a regular file in `folder`. Raises AttemptError."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _fault(shown, error, folder, name) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CandidateFault(f"{shown}: not a regular file; a candidate is source text")
        if _borrowed(status, os.fstat(folder)):
            raise CandidateFault(
                f"{shown}: a hard link to a file of another user; put a copy there"
            )
        try:
            content = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise CandidateFault(f"{shown}: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise CandidateFault(f"{shown}: larger than {LARGEST_FILE >> 20} MiB; keep data out of it")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text ({error.reason} at byte {error.start})"
        raise CandidateFault(f"{shown}: {what}") from error


def _borrowed(file: os.stat_result, folder: os.stat_result) -> bool:
    """Whether another user may have put a link to somebody's file into a folder of theirs.

    Hard links among files of one owner are common and harmless: package managers, `cp -l` and
    stores that share equal files make them.
    """
    trusted = folder.st_uid in (0, os.geteuid(), file.st_uid)
    return file.st_nlink > 1 and not trusted


def _require_writable(files: tuple[tuple[str, str], ...]) -> None:
    """Raise CandidateFault unless `write` can write every file inside its folder."""
    taken: set[str] = set()
    for name, text in files:
        if not (isinstance(name, str) and isinstance(text, str)):
            raise CandidateFault("a file of the attempt is no text")
        parts = name.split("/")
        try:
            raw = name.encode()
            text.encode()
        except UnicodeEncodeError as error:
            raise CandidateFault(f"{name[:80]!a}: not Unicode text") from error
        wrong = any(part in ("", ".", "..") for part in parts) or not name.isprintable()
        long = len(raw) > LONGEST_PATH or any(len(p.encode()) > LONGEST_PART for p in parts)
        if wrong or long:
            raise CandidateFault(f"{name[:80]!a}: no name for a file of an attempt; rename it")
        taken.add(name)
    for name in taken:
        parents = {str(parent) for parent in PurePosixPath(name).parents}
        if parents & taken or name.startswith(f"{MODULE}/"):
            raise CandidateFault(f"{name[:80]!a}: lies below a file, not a folder; rename it")
