"""Give what an attempt compiles at its first call to all its later processes.

Triton and torch.compile compile when a model is first called. That takes seconds in each of some
ten processes: of the verdict, of compute-sanitizer, of each round of a timing. So one process makes
a first call that nothing is judged by, and the files that its compilers left are copied to each
later process of the attempt. These processes start with equal files, so none of them can tell a
timing from a verdict by its files. Not covered: `kernels/`, which is compiled before, and
`load_inline`, whose folders hold their own path.

Invariant: files pass only between processes of one attempt, from one that saw no secret of a
verdict or a timing. Only regular files are copied, of limited number and size. No trusted process
reads what is in them.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cuagent.attempt import Attempt

FOLDERS = ("inductor", "triton")
"""Folders of compiled code in a candidate's folder (`sandbox.policy.environment`)."""
WORDS = ("triton", "torch.compile", ".compile(", "_dynamo")
"""Words in the Python files of an attempt that compiles when it is called."""
MOST_BYTES, MOST_FILES, MOST_DEPTH = 256 << 20, 5000, 8
"""Limits of what is kept of one attempt; nothing is kept of one beyond them."""


def compiles_when_called(attempt: Attempt) -> bool:
    """Return True if an attempt's Python files seem to compile code at the first call."""
    texts = (text for name, text in attempt.files if name.endswith(".py"))
    return any(word in text for text in texts for word in WORDS)


class CompiledCode:
    """Files that attempts compiled, by the attempts' digests, below one folder."""

    def __init__(self) -> None:
        self._kept: dict[str, Path | None] = {}

    def __contains__(self, attempt: Attempt) -> bool:
        """Return True if the attempt's first call was made, even if nothing was kept of it."""
        return attempt.digest in self._kept

    def keep(self, attempt: Attempt, folder: Path | None, parent: Path) -> None:
        """Copy the compiled files in a process's `folder` to a new folder in `parent`.

        The processes that write to `folder` must be stopped or have ended. Nothing is kept if
        `folder` is None.
        """
        self._kept[attempt.digest] = None
        if folder is None:
            return
        own = Path(tempfile.mkdtemp(prefix="compiled-", dir=parent))
        if _copied(folder, own):
            self._kept[attempt.digest] = own
        else:
            shutil.rmtree(own, ignore_errors=True)

    def copy_to(self, attempt: Attempt, folder: Path) -> None:
        """Copy the attempt's compiled files to the folder of a new process; do nothing if there
        are none."""
        kept = self._kept.get(attempt.digest)
        if kept is not None and kept.is_dir():  # it ends with the fork server
            shutil.copytree(kept, folder, dirs_exist_ok=True)


def _copied(folder: Path, target: Path) -> bool:
    """Copy the regular files of compilers below `folder`; return False if they exceed a limit."""
    size = count = 0
    for name in FOLDERS:
        if (folder / name).is_symlink():
            continue
        for path in _files(folder / name, MOST_DEPTH):
            content = _content(path, MOST_BYTES - size)
            size, count = size + len(content or b""), count + 1
            if content is None or count > MOST_FILES:
                return False
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    return True


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the regular files below a folder; no link is followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and depth:
            yield from _files(Path(entry.path), depth - 1)


def _content(path: Path, limit: int) -> bytes | None:
    """Return the bytes of a regular file; None if there are more than `limit`, or it cannot be
    read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(limit + 1)
    return content if len(content) <= limit else None
