"""The work folder under git: a commit for each attempt, restored and compared at will.

The git directory lies beside the work folder, not in it, and no configuration of the user or of
the agent applies: nothing that the agent writes is ever run by git. Where git is not installed
the run goes on without commits; the log holds the text of each attempt anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.record.folder import RecordError, RunFolder

if TYPE_CHECKING:
    from git.cmd import Git
    from git.exc import GitCommandError

IGNORED = ".outputs/\n__pycache__/\n*.so\n*.o\n*.pyc\n"
LARGEST_FILE = 8 << 20
"""Bytes; what is larger is data, and is neither committed nor removed by a restore."""


def init_work(folder: RunFolder) -> bool:
    """Start the history of the work folder. False where git is not installed."""
    git = _git(folder)
    if git is None:
        return False
    if not folder.history.exists():
        git.init("--quiet", "--initial-branch=attempts")
        (folder.history / "info").mkdir(exist_ok=True)
        (folder.history / "info" / "exclude").write_text(IGNORED)
    return True


def commit_work(folder: RunFolder, message: str) -> str:
    """Commit the work folder as it is; returns the commit, "" where there is no history.

    Raises RecordError.
    """
    git = _git(folder)
    if git is None or not folder.history.exists():
        return ""
    from git.exc import GitCommandError

    large = "".join(f"/{name}\n" for name in _large(folder))
    (folder.history / "info" / "exclude").write_text(IGNORED + large)
    try:
        git.add("--all", "--", ".")
        git.commit("--quiet", "--allow-empty", "--no-verify", "--message", message)
        return str(git.rev_parse("HEAD"))
    except GitCommandError as error:
        raise RecordError(f"{folder.work}: cannot be committed ({_words(error)})") from error


def restore_work(folder: RunFolder, commit: str) -> None:
    """Make the work folder what it was at `commit`; no commit is lost. Raises RecordError."""
    git = _git(folder)
    if git is None or not commit:
        raise RecordError(f"{folder.path}: this run has no history to restore from")
    from git.exc import GitCommandError

    try:
        git.read_tree("--reset", "-u", commit)
        git.clean("--force", "-d", "--quiet")
    except GitCommandError as error:
        raise RecordError(f"{folder.work}: cannot be restored ({_words(error)})") from error


def unlock_work(folder: RunFolder) -> None:
    """Remove the locks that a git killed in its work has left; the run must not be running."""
    for lock in folder.history.rglob("*.lock"):
        lock.unlink(missing_ok=True)


def diff_work(folder: RunFolder, old: str, new: str | None = None) -> str:
    """Unified diff between two commits, or from `old` to the work folder as it is."""
    git = _git(folder)
    return str(git.diff(*([old, new] if new else [old]))) if git else ""


def _large(folder: RunFolder) -> Iterator[str]:
    for root, folders, files in os.walk(folder.work):
        folders[:] = [name for name in folders if name != ".outputs"]
        for file in files:
            path = Path(root, file)
            with suppress(FileNotFoundError):  # a background command may be at work
                if path.lstat().st_size > LARGEST_FILE:
                    yield path.relative_to(folder.work).as_posix()


def _words(error: GitCommandError) -> str:
    lines = str(error.stderr).strip().splitlines() or ["git failed"]
    return lines[-1].strip()


def _git(folder: RunFolder) -> Git | None:
    try:
        from git.cmd import Git
    except ImportError:  # raised by gitpython where there is no git command
        return None
    git = Git(str(folder.work))
    git.update_environment(
        GIT_DIR=str(folder.history),
        GIT_WORK_TREE=str(folder.work),
        GIT_CONFIG_GLOBAL="/dev/null",
        GIT_CONFIG_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        **{
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "cuagent"), ("EMAIL", "cuagent@localhost"))
        },
    )
    return git
