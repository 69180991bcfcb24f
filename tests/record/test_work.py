from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.record import (
    RunFolder,
    commit_work,
    diff_work,
    init_work,
    new_run,
    restore_work,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = new_run("t", tmp_path)
    assert init_work(folder)
    return folder


def test_each_attempt_can_be_restored_and_compared(folder: RunFolder) -> None:
    file = folder.work / "model_new.py"
    file.write_text("one\n")
    first = commit_work(folder, "attempt 1")
    file.write_text("two\n")
    (folder.work / "more.py").write_text("more\n")
    second = commit_work(folder, "attempt 2")
    assert "-one\n+two" in diff_work(folder, first, second)
    restore_work(folder, first)
    assert file.read_text() == "one\n"
    assert not (folder.work / "more.py").exists()
    restore_work(folder, second)
    assert (folder.work / "more.py").read_text() == "more\n"


def test_nothing_that_lies_in_the_work_folder_is_run_by_git(folder: RunFolder) -> None:
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


def test_an_unchanged_folder_can_be_committed_too(folder: RunFolder) -> None:
    first = commit_work(folder, "attempt 1")
    assert commit_work(folder, "attempt 1 again") not in ("", first)
