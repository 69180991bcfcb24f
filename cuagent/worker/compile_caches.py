"""Pass the compile caches of an attempt on to the next processes of the same attempt.

Triton and torch.compile keep what they compile in a folder of the process (`sandbox/policy.py`).
Several processes of an attempt are started: to verify, check, time and profile it. Each would
compile the same kernels again, for seconds. So the caches that the verification wrote are copied to
the folders of the later processes before the attempt's code is imported there.

Invariant: files pass only between processes of one attempt, after its verification was passed. They
are read from stopped processes, without following links, and within limits; an attempt that exceeds
a limit compiles again in each process. Nothing here is executed or parsed.
Not covered: a candidate may leave a message to its later processes in these files. It can tell them
nothing that helps: inputs are drawn anew, and outputs are judged while a candidate is timed.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt

INDUCTOR = "inductor"
"""Folder of torch.compile's cache."""
CACHES = ("triton", INDUCTOR)
"""Folders in a process's folder that hold the caches of Triton and of torch.compile."""
MOST_BYTES = 128 << 20
"""Largest number of bytes of one attempt's caches."""
MOST_ENTRIES = 4_000
"""Largest number of files and folders in one attempt's caches."""
DEEPEST = 8
"""Largest number of nested folders in a cache."""
MOST_ATTEMPTS = 4
"""Number of attempts whose caches are kept: the best ones are judged again for the record."""
PLACE = b"\0folder of the process\0"
"""Text that stands for the folder of a process in the files that name other files."""
NAMES_FILES = re.compile(r"__grp__.*\.json")
"""Names of Triton's files that list other files of its cache by their absolute paths."""
_PLAIN = re.compile(r"[\w.+=-]{1,200}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def user_caches() -> Path:
    """Return the folder with this user's caches, which no candidate can read or write."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuagent"


@dataclass(frozen=True)
class _File:
    path: str
    """Relative to the folder of a process."""
    content: bytes
    executable: bool


class _TooMuch(Exception):
    """The caches exceed a limit or hold something that is no plain file."""


class CompileCaches:
    """The caches of the attempts that were verified last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[_File, ...]] = OrderedDict()

    def keep(self, attempt: Attempt, folder: Path) -> None:
        """Keep the caches that a stopped process of the attempt wrote to its folder."""
        own = str(folder).encode()
        try:
            found = tuple(
                _File(file.path, file.content.replace(own, PLACE), file.executable)
                if NAMES_FILES.fullmatch(Path(file.path).name)
                else file
                for file in _read(folder)
            )
        except (OSError, _TooMuch):
            found = ()
        self._kept.pop(attempt.digest, None)
        if found:
            self._kept[attempt.digest] = found
        while len(self._kept) > MOST_ATTEMPTS:
            self._kept.popitem(last=False)

    def has(self, attempt: Attempt) -> bool:
        """Return True if caches of the attempt are kept."""
        return attempt.digest in self._kept

    def lay(self, attempt: Attempt, folder: Path) -> None:
        """Copy the kept caches of the attempt to the folder of a process that has not run its code.

        Files and folders get the owner of `folder`.
        """
        owner, own = folder.stat().st_uid, str(folder).encode()
        for file in self._kept.get(attempt.digest, ()):
            target = folder / file.path
            for above in reversed([p for p in target.parents if p.is_relative_to(folder)]):
                if not above.exists():
                    above.mkdir()
                    _give(above, owner)
            target.write_bytes(
                file.content.replace(PLACE, own)
                if NAMES_FILES.fullmatch(target.name)
                else file.content
            )
            target.chmod(0o755 if file.executable else 0o644)
            _give(target, owner)


def _give(path: Path, owner: int) -> None:
    if path.stat().st_uid != owner:
        os.chown(path, owner, owner)


def _read(folder: Path) -> Iterator[_File]:
    """Yield the files of the caches below `folder`. Raises OSError, _TooMuch."""
    left = [MOST_BYTES, MOST_ENTRIES]
    root = os.open(folder, _FOLDER)
    try:
        for name in CACHES:
            if _exists(root, name):
                yield from _below(root, name, name, left, DEEPEST)
    finally:
        os.close(root)


def _below(parent: int, name: str, path: str, left: list[int], depth: int) -> Iterator[_File]:
    """Yield the regular files below a folder; `left` holds the bytes and entries that may follow.

    Locks and other empty or special files are left out.
    """
    if depth == 0:
        raise _TooMuch
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            kinds = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
        for entry, is_folder in kinds:
            left[1] -= 1
            if left[1] < 0 or not _PLAIN.fullmatch(entry):
                raise _TooMuch
            if is_folder:
                yield from _below(folder, entry, f"{path}/{entry}", left, depth - 1)
            elif (file := _content(folder, entry, left)) is not None:
                yield _File(f"{path}/{entry}", *file)
    finally:
        os.close(folder)


def _content(folder: int, name: str, left: list[int]) -> tuple[bytes, bool] | None:
    """Return the bytes of a regular file and if it is executable; None for any other file."""
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return None
    with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return None
        content = file.read(left[0] + 1)
    left[0] -= len(content)
    if left[0] < 0:
        raise _TooMuch
    return content, bool(status.st_mode & stat.S_IXUSR)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
