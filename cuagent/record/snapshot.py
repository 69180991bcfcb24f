"""Take and restore snapshots of the work folder; the files' contents are stored as blobs of the
run.

Undo restores a snapshot: this is faster than a commit and needs no git.

Not covered: links, empty folders, and files larger than `MAX_FILE_BYTES` (data, not source).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cuagent.record.contained_files import (
    RecordError,
    files_below,
    parts_of,
    read_at,
    read_file,
    write_file,
)
from cuagent.record.folder import RunFolder
from cuagent.record.log import read_blob, write_blob

MAX_FILE_BYTES = 1 << 20
"""Size in bytes of the largest file in a snapshot; sources are smaller."""
LEFT_OUT = frozenset({".outputs", "__pycache__", ".git"})


@dataclass(frozen=True)
class FileState:
    """Time, size and digest of a file at its last snapshot."""

    stamp: tuple[int, int]
    """Modification time (ns) and size (bytes). The content is read again only if one of them
    differs."""
    digest: str


def take_snapshot(folder: RunFolder, known: dict[str, FileState]) -> dict[str, str]:
    """Store each file of the work folder as a blob; return the snapshot: each file's digest by
    path.

    `known` has the states at the last snapshot by path, and is updated. Unchanged files are not
    read again.
    """
    present = set()
    for name, at, status in files_below(folder.work, LEFT_OUT):
        if status.st_size > MAX_FILE_BYTES:
            continue
        present.add(name)
        stamp = status.st_mtime_ns, status.st_size
        if name not in known or known[name].stamp != stamp:
            with suppress(OSError):  # a background command may remove the file now
                content = read_at(at, name.rpartition("/")[2], MAX_FILE_BYTES)
                known[name] = FileState(stamp, write_blob(folder, content))
    for name in known.keys() - present:
        del known[name]
    return {name: state.digest for name, state in sorted(known.items())}


def restore_snapshot(folder: RunFolder, files: Mapping[str, str]) -> None:
    """Restore the work folder to the snapshot `files`, the digests by path. Raises RecordError."""
    for name in files:
        parts_of(name)
    contents = {name: read_blob(folder, digest) for name, digest in files.items()}
    try:
        for name, at, status in files_below(folder.work, LEFT_OUT):
            if name not in files and status.st_size <= MAX_FILE_BYTES:
                os.unlink(name.rpartition("/")[2], dir_fd=at)
        for name, content in contents.items():
            if _content(folder, name) != content:
                write_file(folder.work, name, content, replace_links=True)
    except OSError as error:
        raise RecordError(f"{folder.work}: cannot be restored ({error})") from error


def _content(folder: RunFolder, name: str) -> bytes | None:
    """Return the content of a file in the work folder; None if it cannot be read."""
    try:
        return read_file(folder.work, name, MAX_FILE_BYTES)
    except OSError:
        return None
