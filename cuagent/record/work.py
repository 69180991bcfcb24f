"""The work folder under git: a commit for each attempt, for a person to look at.

The git directory lies beside the work folder, not in it. cuagent reads the files itself and hands
them to `git fast-import`, so that git never looks at the work folder. No configuration, hook or
attribute of anybody else applies: cuagent writes the configuration of the git directory anew when
a run is taken up, and a git directory that it would not have made is set aside.
Where git is not installed the run goes on without commits; the log holds each attempt anyway.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from cuagent.record.folder import RunFolder
from cuagent.record.inside import RecordError, files_below, read_at, write_file

LEFT_OUT = frozenset({".outputs", "__pycache__", ".git"})
BUILT = (".so", ".o", ".pyc")
"""Endings of files that are made from the others."""
LARGEST_FILE = 8 << 20
"""Bytes; what is larger is data and is not committed."""
BRANCH = "refs/heads/attempts"
CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
REDIRECTS = frozenset(
    {"alternates", "http-alternates", "commondir", "config.worktree", "gitdir", "grafts", "shallow"}
)
"""Files of a git directory that lead to other places; cuagent makes none of them."""
OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "protocol.allow": "never",
    "gc.auto": "0",
}


def init_work(folder: RunFolder, *, trusted: bool = True) -> bool:
    """Begin the history of the work folder, or go on with it. False where git is not installed.

    A history that is not `trusted`, or holds what cuagent does not make, is set aside. Raises
    RecordError.
    """
    folder.refuse_links()
    if shutil.which("git") is None:
        return False
    try:
        if folder.history.exists() and not (trusted and _is_plain(folder.history)):
            _set_aside(folder)
        if not folder.history.exists():
            _git(folder, "init", "--quiet", "--bare", "--template=")
            write_file(folder.history, "HEAD", f"ref: {BRANCH}\n".encode())
        write_file(folder.history, "config", CONFIG)
    except OSError as error:
        raise RecordError(f"{folder.history}: {error.strerror or error}") from error
    return True


def commit_work(folder: RunFolder, message: str) -> str:
    """Commit the work folder as it is; returns the commit, "" where there is no history.

    Raises RecordError.
    """
    if shutil.which("git") is None or not folder.history.is_dir():
        return ""
    before = _git(folder, "for-each-ref", "--format=%(objectname)", BRANCH).decode().strip()
    try:
        stream = b"".join(_commit(folder, message, before))
    except OSError as error:
        raise RecordError(f"{folder.work}: cannot be committed ({error})") from error
    return _git(folder, "fast-import", "--quiet", "--done", stream=stream).decode().strip()


def _commit(folder: RunFolder, message: str, before: str) -> Iterator[bytes]:
    """What `git fast-import` reads; it answers with the name of the commit."""
    text = message.encode("utf-8", "replace")
    yield f"commit {BRANCH}\nmark :1\n".encode()
    yield f"committer cuagent <cuagent@localhost> {int(time.time())} +0000\n".encode()
    yield b"data %d\n%s\n" % (len(text), text)
    if before:
        yield f"from {before}\n".encode()
    yield b"deleteall\n"
    for name, at, status in files_below(folder.work, LEFT_OUT):
        if status.st_size > LARGEST_FILE or name.endswith(BUILT):
            continue
        try:
            content = read_at(at, name.rpartition("/")[2], LARGEST_FILE)
        except OSError:  # a background command may be at work
            continue
        mode = b"100755" if status.st_mode & 0o100 else b"100644"
        yield b"M %s inline %s\n" % (mode, _quoted(name))
        yield b"data %d\n%s\n" % (len(content), content)
    yield b"get-mark :1\ndone\n"


def _quoted(name: str) -> bytes:
    """A path as `git fast-import` reads it."""
    raw = os.fsencode(name)
    for special, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(special, escaped)
    return b'"%s"' % raw


def _is_plain(history: Path) -> bool:
    """Whether it holds folders and regular files alone, none of which leads to another place.

    Locks that a killed git has left are removed; the run must not be running.
    """
    for _, folders, names, at in os.fwalk(history, follow_symlinks=False):
        entries = [*folders, *names]
        modes = [os.stat(name, dir_fd=at, follow_symlinks=False).st_mode for name in entries]
        if not all(S_ISDIR(mode) or S_ISREG(mode) for mode in modes):
            return False
        if REDIRECTS.intersection(entries) or "hooks" in entries:
            return False
        for name in names:
            if name.endswith(".lock"):
                os.unlink(name, dir_fd=at)
    return True


def _set_aside(folder: RunFolder) -> None:
    n = 1
    while (other := folder.path / f"{folder.history.name}.old-{n}").exists():
        n += 1
    folder.history.rename(other)


def _git(folder: RunFolder, *arguments: str, stream: bytes = b"") -> bytes:
    """What a git command prints. Raises RecordError."""
    command = [str(shutil.which("git"))]
    for key, value in OPTIONS.items():
        command += ["-c", f"{key}={value}"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder.path,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "GIT_DIR": str(folder.history),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        },
        input=stream,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["git failed"]
        raise RecordError(f"{folder.history}: no commit ({said[-1].strip()})")
    return done.stdout
