"""The work folder as it stands after a step, kept in the run's blobs by content.

For going back a step: quicker than a commit, and there without git. Not covered: links, folders
that are empty, and files that are larger than `LARGEST_FILE` (data, not source).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from cuagent.record.folder import RecordError, RunFolder

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
    for name, path in _files(folder.work):
        with suppress(OSError):  # a background command may be at work
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            if name not in known or known[name].stamp != stamp:
                known[name] = Kept(stamp, _keep(folder, path.read_bytes()))
    there = {name for name, _ in _files(folder.work)}
    for name in known.keys() - there:
        del known[name]
    return {name: kept.digest for name, kept in sorted(known.items())}


def restore_snapshot(folder: RunFolder, files: Mapping[str, str]) -> None:
    """Make the work folder what it was. Raises RecordError."""
    try:
        for name, path in list(_files(folder.work)):
            if name not in files:
                path.unlink()
        for name, digest in files.items():
            path, content = folder.work / name, (folder.blobs / digest).read_bytes()
            if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
                _write(path, content)
    except OSError as error:
        raise RecordError(f"{folder.work}: cannot be restored ({error})") from error


def _files(work: Path) -> Iterator[tuple[str, Path]]:
    """Regular files that are kept, by their path in the work folder."""
    for root, folders, names in os.walk(work):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            path = Path(root, name)
            with suppress(OSError):
                status = path.lstat()
                if S_ISREG(status.st_mode) and status.st_size <= LARGEST_FILE:
                    yield path.relative_to(work).as_posix(), path


def _keep(folder: RunFolder, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    target = folder.blobs / digest
    if not target.exists():
        partial = target.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(target)
    return digest


def _write(path: Path, content: bytes) -> None:
    """A new file in the place of whatever is there; its permissions stay."""
    mode = path.stat().st_mode if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    if mode is not None:
        path.chmod(mode & 0o777)
