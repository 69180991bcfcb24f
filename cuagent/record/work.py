"""Record the work folder in git: one commit for each attempt, for people to inspect.

The git directory is outside the work folder. cuagent reads the files and passes them to `git
fast-import`, so git never reads the work folder. No foreign configuration, hook or attribute
applies: when a run starts or resumes, cuagent rewrites the configuration of the git directory. A
git directory with unexpected files is moved away. If git is not installed, the run continues
without commits; the log has each attempt in any case.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from cuagent.record.contained_files import RecordError, files_below, read_at, write_file
from cuagent.record.folder import RunFolder

LEFT_OUT = frozenset({".outputs", "__pycache__", ".git"})
BUILT = (".so", ".o", ".pyc")
"""File name suffixes of build products, which are not committed."""
MAX_FILE_BYTES = 8 << 20
"""Size in bytes of the largest file that is committed. Larger files are data, not source."""
BRANCH = "refs/heads/attempts"
CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
REDIRECTS = frozenset(
    {"alternates", "http-alternates", "commondir", "config.worktree", "gitdir", "grafts", "shallow"}
)
"""Names of files in a git directory that can refer to other folders. cuagent creates none of
them."""
OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "protocol.allow": "never",
    "gc.auto": "0",
}


def init_work(folder: RunFolder, *, trusted: bool = True) -> bool:
    """Create the git directory of the work folder, or reuse it. Return False if git is not
    installed.

    A history that is not `trusted`, or has files that cuagent does not create, is moved to
    `history.git.old-N`. Raises RecordError.
    """
    folder.refuse_links()
    if shutil.which("git") is None:
        return False
    try:
        if folder.history.exists() and not (trusted and _is_plain(folder.history)):
            _move_history_away(folder)
        if not folder.history.exists():
            _git(folder, "init", "--quiet", "--bare", "--template=")
            write_file(folder.history, "HEAD", f"ref: {BRANCH}\n".encode())
        write_file(folder.history, "config", CONFIG)
    except OSError as error:
        raise RecordError(f"{folder.history}: {error.strerror or error}") from error
    return True


def commit_work(folder: RunFolder, message: str) -> str:
    """Commit the work folder; return the commit's hash, or "" if the run has no git directory.

    Raises RecordError.
    """
    if shutil.which("git") is None or not folder.history.is_dir():
        return ""
    parent = _git(folder, "for-each-ref", "--format=%(objectname)", BRANCH).decode().strip()
    try:
        stream = b"".join(_commit(folder, message, parent))
    except OSError as error:
        raise RecordError(f"{folder.work}: cannot be committed ({error})") from error
    return _git(folder, "fast-import", "--quiet", "--done", stream=stream).decode().strip()


def _commit(folder: RunFolder, message: str, parent: str) -> Iterator[bytes]:
    """Yield the input of `git fast-import` for one commit, with the command that prints its
    hash."""
    text = message.encode("utf-8", "replace")
    yield f"commit {BRANCH}\nmark :1\n".encode()
    yield f"committer cuagent <cuagent@localhost> {int(time.time())} +0000\n".encode()
    yield b"data %d\n%s\n" % (len(text), text)
    if parent:
        yield f"from {parent}\n".encode()
    yield b"deleteall\n"
    for name, at, status in files_below(folder.work, LEFT_OUT):
        if status.st_size > MAX_FILE_BYTES or name.endswith(BUILT):
            continue
        try:
            content = read_at(at, name.rpartition("/")[2], MAX_FILE_BYTES)
        except OSError:  # a background command may remove the file now
            continue
        mode = b"100755" if status.st_mode & 0o100 else b"100644"
        yield b"M %s inline %s\n" % (mode, _quoted(name))
        yield b"data %d\n%s\n" % (len(content), content)
    yield b"get-mark :1\ndone\n"


def _quoted(name: str) -> bytes:
    """Return a path in the quoted form that `git fast-import` reads."""
    raw = os.fsencode(name)
    for special, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(special, escaped)
    return b'"%s"' % raw


def _is_plain(history: Path) -> bool:
    """Return True if a git directory has only folders and regular files, no hooks and none of
    `REDIRECTS`.

    Lock files of a killed git are removed, so no other process may use the directory.
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


def _move_history_away(folder: RunFolder) -> None:
    n = 1
    while (target := folder.path / f"{folder.history.name}.old-{n}").exists():
        n += 1
    folder.history.rename(target)


def _git(folder: RunFolder, *arguments: str, stream: bytes = b"") -> bytes:
    """Run a git command on the run's git directory; return its output. Raises RecordError if it
    fails."""
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
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["git failed"]
        raise RecordError(f"{folder.history}: git failed ({lines[-1].strip()})")
    return done.stdout
