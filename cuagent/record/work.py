"""The work folder under git: a commit for each attempt, restored and compared at will.

The git directory lies beside the work folder, not in it, and no configuration of the user or of
the agent applies: nothing that the agent writes is ever run by git. Where git is not installed
the run goes on without commits; the log holds the text of each attempt anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.record.folder import RecordError, RunFolder

if TYPE_CHECKING:
    from git.cmd import Git

IGNORED = ".outputs/\n__pycache__/\n*.so\n*.o\n*.pyc\n"


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
    """Commit the work folder as it is; returns the commit, or "" where there is no history."""
    git = _git(folder)
    if git is None or not folder.history.exists():
        return ""
    git.add("--all", "--", ".")
    git.commit("--quiet", "--allow-empty", "--no-verify", "--message", message)
    return str(git.rev_parse("HEAD"))


def restore_work(folder: RunFolder, commit: str) -> None:
    """Make the work folder what it was at `commit`; later commits stay known."""
    git = _git(folder)
    if git is None or not commit:
        raise RecordError(f"{folder.path}: this run has no history to restore from")
    git.read_tree("--reset", "-u", commit)
    git.clean("--force", "-d", "--quiet")


def diff_work(folder: RunFolder, old: str, new: str | None = None) -> str:
    """Unified diff between two commits, or from `old` to the work folder as it is."""
    git = _git(folder)
    return str(git.diff(*([old, new] if new else [old]))) if git else ""


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
