"""Open files beneath a folder that another process may change at any moment.

A path that is checked and then opened by name can change its target in between. Each function here
starts from the descriptor of an open folder, and the kernel resolves the name: openat2 with
RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS. If openat2 is missing, each
component of the name is opened separately with O_NOFOLLOW. No symbolic link is followed, not even
to a target inside the folder, so that both ways behave alike.

Not covered: hard links. The sandbox does not let a process make one to a file outside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from cuagent.sandbox.linux import SUPPORTED, syscall

OPENAT2 = 437
NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of open() for a folder whose entries are opened, created or renamed, but not listed."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_folder(path: Path) -> int:
    """Open the folder that the other functions start from; return its descriptor.

    Raises OSError if `path` is a symbolic link.
    """
    return os.open(path, FOLDER)


def open_beneath(root: int, name: str, flags: int, mode: int = 0o666) -> int:
    """Open the file `name` beneath the folder `root`; return its descriptor.

    `name` contains no `..`; an empty name is the folder itself. Raises OSError, with ELOOP for a
    link.
    """
    if _has_openat2():
        return _openat2(root, name or ".", flags, mode)
    return _open_by_component(root, name, flags, mode)


def read_beneath(root: int, name: str, most: int) -> bytes:
    """Read a regular file beneath the folder `root`, at most `most` + 1 bytes of it.

    A longer result than `most` bytes tells the caller that the file is too large. Raises OSError,
    with EISDIR for a folder and ENXIO for any other kind of file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    file = open_beneath(root, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        kind = os.fstat(file).st_mode
        if not stat.S_ISREG(kind):
            code = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO
            raise OSError(code, os.strerror(code), name)
        with os.fdopen(file, "rb", closefd=False) as data:
            return data.read(most + 1)
    finally:
        os.close(file)


def write_beneath(root: int, name: str, data: bytes) -> None:
    """Write a file beneath the folder `root` atomically; create missing parent folders. Raises
    OSError."""
    parent, _, last = name.rpartition("/")
    folder = make_folders(root, parent)
    partial = f".{last}.partial"
    try:
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
        with os.fdopen(create(folder, partial), "wb") as file:
            file.write(data)
        os.rename(partial, last, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def create(folder: int, name: str) -> int:
    """Create a new file in an open folder; return its descriptor for reading and writing.

    Raises OSError, also if the file exists.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o666, dir_fd=folder)


def make_folders(root: int, name: str) -> int:
    """Open the folder `name` beneath `root` and return its descriptor; create missing folders.

    Raises OSError.
    """
    folder = os.dup(root)
    try:
        for part in filter(None, name.split("/")):
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            child = open_beneath(folder, part, FOLDER)
            os.close(folder)
            folder = child
    except BaseException:
        os.close(folder)
        raise
    return folder


def list_beneath(root: int, name: str = "") -> list[os.DirEntry[str]]:
    """Return the entries of one folder beneath `root`. Raises OSError.

    Query the entries with follow_symlinks=False only.
    """
    folder = open_beneath(root, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
            for entry in found:
                with suppress(OSError):  # the file may be gone; the entry caches the result
                    entry.stat(follow_symlinks=False)
            return found
    finally:
        os.close(folder)


def files_beneath(root: int, hidden: Collection[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield the name, relative to `root`, and the size in bytes of each regular file at any depth.

    Files and folders with a name in `hidden` are skipped.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        with suppress(OSError):  # the folder may be gone, or too deep for a path
            for entry in list_beneath(root, folder):
                if entry.name in hidden:
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        yield name, entry.stat(follow_symlinks=False).st_size


def _openat2(root: int, name: str, flags: int, mode: int) -> int:
    how = _OpenHow(
        flags | os.O_CLOEXEC,
        mode if flags & os.O_CREAT else 0,
        BENEATH | NO_SYMLINKS | NO_MAGICLINKS,
    )
    return syscall(OPENAT2, root, os.fsencode(name), how, ctypes.sizeof(how))


@cache
def _has_openat2() -> bool:
    """Return True if the kernel has openat2 (Linux 5.6) and no container filter blocks it."""
    if not SUPPORTED:
        return False
    try:
        os.close(_openat2(-100, ".", os.O_RDONLY | os.O_DIRECTORY, 0))
    except OSError:
        return False
    return True


def _open_by_component(root: int, name: str, flags: int, mode: int) -> int:
    *parents, last = list(filter(None, name.split("/"))) or ["."]
    if ".." in (*parents, last) or name.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    folder = os.dup(root)
    try:
        for part in parents:
            child = _open_one(folder, part, FOLDER, 0)
            os.close(folder)
            folder = child
        return _open_one(folder, last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    finally:
        os.close(folder)


def _open_one(folder: int, name: str, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=folder)
    except NotADirectoryError:
        # With O_DIRECTORY a link gives ENOTDIR here, but ELOOP from openat2.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise
