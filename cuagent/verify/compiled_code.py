"""Copy the files that an attempt compiles at its first call to all its later processes.

Triton and torch.compile compile when a model is first called. That takes seconds in each of some
ten processes of a judgement: the verdict's, compute-sanitizer's, those of each timing round. So one
process makes a first call, whose result is not judged. The files that its compilers wrote are then
copied to each later process of the attempt. These processes start with equal files, so none of them
can tell a timing from a verdict by its files. Not covered: `kernels/`, which is compiled before,
and `load_inline`, whose folders contain their own path.

Invariant: files pass only between processes of one attempt, from one that saw no secret of a
verdict or a timing. They are read from stopped processes, without following links, and within
limits. No trusted process runs or parses them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuagent.attempt import Attempt

FOLDERS = ("triton", "inductor")
"""Names of the compiler caches in a candidate's working folder (`sandbox.policy.environment`)."""
WORDS = ("triton", "torch.compile", ".compile(", "_dynamo")
"""Words whose presence in an attempt's Python files means that it compiles code at its first call.
"""
MOST_BYTES = 128 << 20
"""Largest total size in bytes of one attempt's compiled files.

If an attempt exceeds this or a limit below, none of its files are stored.
"""
MOST_ENTRIES = 5_000
"""Largest number of compiled files and folders of one attempt."""
MOST_DEPTH = 8
"""Largest nesting depth of the folders of compiled files."""
MOST_ATTEMPTS = 4
"""Number of attempts whose files are stored; the best attempts are judged again for the record."""
NAMES_FILES = re.compile(r"__grp__.*\.json")
"""Names of Triton's files that list other files of its cache by their absolute paths."""
_PLAIN = re.compile(r"[\w.+=-]{1,200}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def compiles_when_called(attempt: Attempt) -> bool:
    """Return True if the attempt's Python files contain one of WORDS, so its first call compiles
    code.
    """
    texts = (text for name, text in attempt.files if name.endswith(".py"))
    return any(word in text for text in texts for word in WORDS)


@dataclass(frozen=True)
class _File:
    path: str
    """Path relative to the folder of the process that wrote the file."""
    content: bytes
    executable: bool

    def moved(self, old: bytes, new: bytes) -> bytes:
        """Return the content with `new` for the path `old` of the folder.

        Binary files also store the length of a path, so in them a path is replaced only by one of
        equal length. The paths of all processes of one fork server have one length. torch's cached
        graphs contain such paths, because a Triton kernel's tuning is written into the folder of
        the kernel's source.
        """
        replaces = len(old) == len(new) or NAMES_FILES.fullmatch(Path(self.path).name)
        return self.content.replace(old, new) if replaces else self.content


@dataclass(frozen=True)
class _Compiled:
    """The compiled files of one attempt, and the path of the folder in which they were written."""

    files: tuple[_File, ...] = ()
    folder: bytes = b""
    first_call_s: float = 0.0
    """Seconds that the first call took; 0 if it failed."""


class _TooMuch(Exception):
    """Error: the compiled files of an attempt exceed MOST_BYTES, MOST_ENTRIES or MOST_DEPTH."""


class CompiledCode:
    """Store of the files that recent attempts compiled at their first call, by attempt digest."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()

    def __contains__(self, attempt: Attempt) -> bool:
        """Return True if the attempt's first call was already made, even if it left no files to
        store.
        """
        return attempt.digest in self._kept

    def has_files(self, attempt: Attempt) -> bool:
        """Return True if at least one compiled file of the attempt is stored."""
        return attempt in self and bool(self._kept[attempt.digest].files)

    def first_call_s(self, attempt: Attempt) -> float:
        """Return the seconds that the attempt's first call took; 0 if it was not made or failed."""
        return self._kept.get(attempt.digest, _Compiled()).first_call_s

    def keep(self, attempt: Attempt, folder: Path | None, first_call_s: float = 0.0) -> None:
        """Read the compiled files in a process's `folder` and store them; store none if `folder` is
        None.

        The first call took `first_call_s` seconds. The processes that write to `folder` must be
        stopped or have ended.
        """
        found = _Compiled(first_call_s=first_call_s)
        if folder is not None:
            with contextlib.suppress(OSError, _TooMuch):
                found = _Compiled(tuple(_read(folder)), str(folder).encode(), first_call_s)
        self._kept.pop(attempt.digest, None)
        self._kept[attempt.digest] = found
        while len(self._kept) > MOST_ATTEMPTS:
            self._kept.popitem(last=False)

    def copy_to(self, attempt: Attempt, folder: Path) -> None:
        """Write the attempt's stored files to the `folder` of a new process that has not run its
        code.

        The files get the owner of `folder`.
        """
        owner, own = folder.stat().st_uid, str(folder).encode()
        compiled = self._kept.get(attempt.digest, _Compiled())
        for file in compiled.files:
            target = folder / file.path
            for above in reversed([p for p in target.parents if p.is_relative_to(folder)]):
                if not above.exists():
                    above.mkdir()
                    _give(above, owner)
            target.write_bytes(file.moved(compiled.folder, own))
            target.chmod(0o755 if file.executable else 0o644)
            _give(target, owner)


def _give(path: Path, owner: int) -> None:
    if path.stat().st_uid != owner:
        os.chown(path, owner, owner)


def _read(folder: Path) -> Iterator[_File]:
    """Yield the compiled files below `folder`. Raises OSError, _TooMuch."""
    left = [MOST_BYTES, MOST_ENTRIES]
    root = os.open(folder, _FOLDER)
    try:
        for name in FOLDERS:
            if _is_folder(root, name):
                yield from _below(root, name, name, left, MOST_DEPTH)
    finally:
        os.close(root)


def _below(parent: int, name: str, path: str, left: list[int], depth: int) -> Iterator[_File]:
    """Yield the regular files in folder `name`, and in its subfolders, as `_File`.

    `parent` is an open descriptor of the folder above, `path` the path for `_File.path`. `left` is
    [bytes, entries] that may still be read; both are reduced. Locks, empty files and special files
    are skipped.
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
    """Return (bytes, is executable) of a regular file; None for any other kind of file.

    `folder` is a directory descriptor. `left` is [bytes, entries] that may still be read.
    """
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


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
