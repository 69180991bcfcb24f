from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuagent.record import (
    RunFolder,
    commit_work,
    init_work,
    new_run,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = new_run("t", tmp_path)
    assert init_work(folder)
    return folder


def git(folder: RunFolder, *arguments: str) -> str:
    command = ["git", "--git-dir", str(folder.history), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_each_attempt_is_a_commit(folder: RunFolder) -> None:
    file = folder.work / "model_new.py"
    file.write_text("one\n")
    (folder.work / "gone.py").write_text("gone\n")
    first = commit_work(folder, "attempt 1: right")
    file.write_text("two\n")
    file.chmod(0o755)
    (folder.work / "gone.py").unlink()
    odd = folder.work / "kernels" / 'od"d \\ \n ü.py'
    odd.parent.mkdir()
    odd.write_text("more\n")
    (folder.work / "kernels" / "a.so").write_text("built")
    (folder.work / "large").write_bytes(bytes(9 << 20))
    (folder.work / "link").symlink_to("/etc/passwd")
    second = commit_work(folder, "attempt 2")
    assert "-one\n+two" in git(folder, "diff", first, second)
    assert git(folder, "show", f"{second}:kernels/{odd.name}") == "more\n"
    names = git(folder, "ls-tree", "-r", "-z", second).split("\0")
    assert [name.partition("\t")[2] for name in names[:-1]] == [
        f"kernels/{odd.name}",
        "model_new.py",
    ]
    assert names[1].startswith("100755 blob")
    assert git(folder, "log", "--format=%s").split("\n")[:2] == ["attempt 2", "attempt 1: right"]
    git(folder, "fsck", "--strict")


def test_git_runs_no_command_from_the_work_folder(folder: RunFolder) -> None:
    hooks = folder.work / ".git" / "hooks"
    hooks.mkdir(parents=True)
    proof = folder.path / "proof"
    (hooks / "pre-commit").write_text(f"#!/bin/sh\ntouch {proof}\n")
    (hooks / "pre-commit").chmod(0o755)
    (folder.work / ".gitattributes").write_text("* filter=evil\n")
    (folder.work / ".git" / "config").write_text(
        f'[filter "evil"]\nclean = touch {proof}\n[core]\nfsmonitor = touch {proof}\n'
    )
    (folder.work / "a.py").write_text("x")
    assert commit_work(folder, "attempt 1")
    assert not proof.exists()


def test_unchanged_folder_can_be_committed(folder: RunFolder) -> None:
    first = commit_work(folder, "attempt 1")
    assert commit_work(folder, "attempt 1 again") not in ("", first)
