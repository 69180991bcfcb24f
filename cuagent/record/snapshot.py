"""The work folder as it stands after a step, kept in the run's blobs by content.

For going back a step: quicker than a commit, and there without git. Not covered: links, folders
that are empty, and files that are larger than `LARGEST_FILE` (data, not source).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cuagent.record.folder import RunFolder
from cuagent.record.inside import RecordError, files_below, parts_of, read_at, read_file, write_file
from cuagent.record.log import keep_blob, read_blob

LARGEST_FILE = 1 << 20
"""Bytes."""
LEFT_OUT = frozenset({".outputs", "__pycache__", ".git"})


@dataclass(frozen=True)
class Kept:
    """A file as it was when it was last looked at."""

    stamp: tuple[int, int]
    """Its time of change (ns) and its size: while both stay, so does the content."""
    digest: str


def take_snapshot(folder: RunFolder, known: dict[str, Kept]) -> dict[str, str]:
    """Digest of each file by its path, each content kept as a blob; `known` spares what stayed."""
    there = set()
    for name, at, status in files_below(folder.work, LEFT_OUT):
        if status.st_size > LARGEST_FILE:
            continue
        there.add(name)
        stamp = status.st_mtime_ns, status.st_size
        if name not in known or known[name].stamp != stamp:
            with suppress(OSError):  # a background command may be at work
                content = read_at(at, name.rpartition("/")[2], LARGEST_FILE)
                known[name] = Kept(stamp, keep_blob(folder, content))
    for name in known.keys() - there:
        del known[name]
    return {name: kept.digest for name, kept in sorted(known.items())}


def restore_snapshot(folder: RunFolder, files: Mapping[str, str]) -> None:
    """Make the work folder what it was. Raises RecordError."""
    for name in files:
        parts_of(name)
    contents = {name: read_blob(folder, digest) for name, digest in files.items()}
    try:
        for name, at, status in files_below(folder.work, LEFT_OUT):
            if name not in files and status.st_size <= LARGEST_FILE:
                os.unlink(name.rpartition("/")[2], dir_fd=at)
        for name, content in contents.items():
            if _content(folder, name) != content:
                write_file(folder.work, name, content, replace_links=True)
    except OSError as error:
        raise RecordError(f"{folder.work}: cannot be restored ({error})") from error


def _content(folder: RunFolder, name: str) -> bytes | None:
    """What is in a file of the work folder; None where there is no such file."""
    try:
        return read_file(folder.work, name)
    except OSError:
        return None
