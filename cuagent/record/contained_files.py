"""Open files below a folder that untrusted programs can write, without following links.

A run folder may come with a cloned repository, and a command of the model may change the work
folder at any time. So each name is checked, and each folder on the path to a file is opened with
O_NOFOLLOW relative to the descriptor of the folder above it.

Invariant: no function here reads, writes or removes anything outside the folder that it is given.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH = 64
"""Largest depth of nested folders in which `files_below` looks for files."""


class RecordError(Exception):
    """Error: a run folder is missing or unusable. The message is one line: place, problem,
    remedy."""


def parts_of(name: str) -> tuple[str, ...]:
    """Split a relative path into its parts: `a/b` -> ("a", "b").

    Raises RecordError if the path can lead out of its folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise RecordError(f"{name[:80]!r}: leads out of the folder of the run; it was not used")
    return parts


def refuse_links(folder: Path) -> None:
    """Raise RecordError if a folder of results contains a symbolic link, at any depth.

    cuagent creates no links there. A folder from a cloned repository may contain one, which would
    redirect a write to another file of the user.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if (path := Path(place, name)).is_symlink():
                raise RecordError(
                    f"{path}: is a link; check where it leads, remove it, or name another folder"
                )


def read_file(root: Path, name: str, largest: int | None = None) -> bytes:
    """Return the content of a regular file below `root`; no link is followed.

    Raises RecordError if `name` leads out of `root`, OSError if the file has more than `largest`
    bytes or is not regular.
    """
    *above, last = parts_of(name)
    with _folder(root, above) as folder:
        return read_at(folder, last, largest)


def read_at(folder: int, name: str, largest: int | None = None) -> bytes:
    """Return the content of the regular file `name` in the folder with the descriptor `folder`.

    Raises OSError, also for a file of more than `largest` bytes.
    """
    with os.fdopen(os.open(name, READ, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{name} is not a regular file")
        if largest is not None and status.st_size > largest:
            raise OSError(f"{name} is larger than {largest} bytes")
        return file.read()


def write_file(root: Path, name: str, content: bytes, *, replace_links: bool = False) -> None:
    """Write a file below `root` atomically, and create missing folders.

    An existing file keeps its permissions. A link at the file's path is replaced. A link in place
    of a folder is replaced if `replace_links` is True, else it is an error. Raises OSError and
    RecordError.
    """
    *above, last = parts_of(name)
    with _folder(root, above, make=True, replace_links=replace_links) as folder:
        mode = _mode(folder, last)
        partial = f".{last[:64]}.{secrets.token_hex(6)}"
        with os.fdopen(os.open(partial, CREATE, 0o666, dir_fd=folder), "wb") as file:
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        try:
            os.replace(partial, last, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(partial, dir_fd=folder)
            raise


def create_file(root: Path, name: str, content: bytes, mode: int = 0o666) -> bool:
    """Write a new file below `root`; return False, without writing, if it exists already.

    Raises OSError, RecordError.
    """
    *above, last = parts_of(name)
    with _folder(root, above) as folder:
        try:
            file = os.open(last, CREATE, mode, dir_fd=folder)
        except FileExistsError:
            return False
        with os.fdopen(file, "wb") as out:
            out.write(content)
    return True


def files_below(root: Path, left_out: frozenset[str]) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield (relative path, descriptor of its folder, stat result) for each regular file below
    `root`.

    The descriptor is valid until the next item. Folders named in `left_out` are skipped.
    """
    for path, folders, names, folder in os.fwalk(root, follow_symlinks=False):
        below = PurePosixPath(path).relative_to(PurePosixPath(root))
        folders[:] = [name for name in folders if name not in left_out]
        if len(below.parts) >= MAX_DEPTH:
            folders.clear()
        for name in names:
            with suppress(OSError):  # a background command may remove the file now
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield str(below / name), folder, status


@contextmanager
def _folder(
    root: Path, parts: Sequence[str], *, make: bool = False, replace_links: bool = False
) -> Iterator[int]:
    """Open the folder `root/parts...` for the block; yields its descriptor.

    `make` creates missing folders; `replace_links` replaces a link in place of a folder.
    """
    folder = os.open(root, FOLDER)
    try:
        for part in parts:
            if replace_links and _is_link(folder, part):
                os.unlink(part, dir_fd=folder)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _mode(folder: int, name: str) -> int | None:
    """Return the permission bits of the regular file `name`; None if there is no such file."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(mode) & 0o777 if stat.S_ISREG(mode) else None
