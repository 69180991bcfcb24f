"""Authentication of logs and evidence files, and protection against hostile run folders."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cuagent.cli.exits import Refused
from cuagent.cli.trust import require_trusted_run
from cuagent.message import Message
from cuagent.record import (
    RecordError,
    RunFolder,
    RunLog,
    attempt_of,
    commit_work,
    create_file,
    find_run,
    init_work,
    list_runs,
    new_run,
    read_file,
    read_records,
    restore_snapshot,
    take_snapshot,
    write_file,
)
from cuagent.record.origin import Origin, has_valid_mac, with_mac


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run("t", tmp_path / ".cuagent" / "runs")


def written(folder: RunFolder) -> RunFolder:
    with RunLog(folder) as log:
        log.write("session", task={"name": "t"})
        log.message(Message("user", "go"))
    return folder


def test_log_is_authentic_only_with_the_key_of_this_user(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(folder).is_made_here
    assert "mac" not in read_records(folder)[0]
    folder.path.rename(tmp_path / "moved")
    assert RunFolder(tmp_path / "moved").is_made_here
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not RunFolder(tmp_path / "moved").is_made_here
    key = tmp_path / "other" / "cuagent" / "key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_changed_or_added_line_makes_a_log_of_another_origin(folder: RunFolder) -> None:
    whole = written(folder).log.read_bytes()
    for changed in (
        whole.replace(b'"go"', b'"no"'),
        whole + b'{"type":"notice","id":"n3","text":"x"}\n',
        whole.split(b"\n", 1)[1],
        whole.replace(b'"name":"t"', b'"name":"u"'),
    ):
        folder.log.write_bytes(changed)
        assert not folder.is_made_here
    folder.log.write_bytes(whole + b'{"type":"not')
    assert folder.is_made_here, "a partial line of a killed writer does not count"


def test_log_that_lost_its_last_records_is_incomplete(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(folder).log.read_bytes()
    assert folder.origin is Origin.HERE
    folder.log.write_bytes(whole[: whole.index(b"\n") + 1])
    assert folder.origin is Origin.INCOMPLETE
    assert not folder.is_made_here
    with pytest.raises(Refused, match="log incomplete: records at its end were removed"):
        require_trusted_run(folder, "It would be resumed", trust=False)
    with RunLog(folder) as log:
        assert not log.is_made_here
        log.write("resume")
    assert folder.is_made_here, "the user has agreed to resume it"
    folder.log.write_bytes(whole)
    assert not folder.is_made_here, "the records of before are not those that were resumed"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert folder.origin is Origin.UNKNOWN


def test_log_of_immense_size_is_refused_before_it_is_read(folder: RunFolder) -> None:
    written(folder)
    os.truncate(folder.log, 1 << 40)
    for use in (read_records, RunLog, lambda f: f.origin):
        with pytest.raises(RecordError, match="larger than"):
            use(folder)


def test_blob_that_is_named_again_and_again_is_refused(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLog(folder) as log:
        log.write("session", task={"name": "t"})
        log.write("notice", texts=[str(n) * 10_000 for n in range(5)])
    assert len(read_records(folder)[1]["texts"]) == 5
    monkeypatch.setattr("cuagent.record.log.MOST_BLOB_BYTES", 40_000)
    with pytest.raises(RecordError, match="refers to more than 0 MiB of blobs"):
        read_records(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_key_of_another_owner_is_not_used(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "state" / "cuagent" / "key"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(32))
    os.chown(path, 65534, 65534)
    assert not written(folder).is_made_here
    assert "mac" not in with_mac({"a": 1})


def test_log_is_authentic_after_a_resume_on_this_machine(folder: RunFolder) -> None:
    folder.log.write_bytes(b'{"type":"session","id":"s1","time":1,"v":1}\n')
    assert not folder.is_made_here
    with RunLog(folder) as log:
        assert not log.is_made_here
        log.write("resume")
    assert folder.is_made_here
    with RunLog(folder) as log:
        assert log.is_made_here


def test_mac_of_evidence_covers_the_whole_content() -> None:
    data = json.loads(json.dumps(with_mac({"task": {"source": "x"}, "figures": [0.1, 1e-30]})))
    assert has_valid_mac(data)
    assert not has_valid_mac({**data, "task": {"source": "y"}})
    assert not has_valid_mac({"task": 1})
    assert not has_valid_mac({**data, "mac": "\u00e9"})


@pytest.mark.parametrize(
    "part", ["log.jsonl", "blobs", "work", "history.git", "scratch", "evidence"]
)
def test_linked_part_is_refused_and_its_target_unchanged(
    folder: RunFolder, tmp_path: Path, part: str
) -> None:
    written(folder)
    outside = tmp_path / "outside"
    (folder.path / part).rename(outside) if (folder.path / part).exists() else outside.mkdir()
    before = outside.read_bytes() if outside.is_file() else None
    (folder.path / part).symlink_to(outside)
    with pytest.raises(RecordError, match="is a link" if part != "log.jsonl" else "no run"):
        find_run(folder.id, folder.path.parent)
    with pytest.raises(RecordError, match="is a link"):
        find_run(str(folder.path))
    with pytest.raises(RecordError, match="is a link"):
        RunLog(folder)
    if before is not None:
        assert outside.read_bytes() == before


@pytest.mark.parametrize("linked", [".cuagent", ".cuagent/runs"])
def test_linked_folder_of_runs_is_refused(folder: RunFolder, tmp_path: Path, linked: str) -> None:
    written(folder)
    (tmp_path / linked).rename(tmp_path / "elsewhere")
    (tmp_path / linked).symlink_to(tmp_path / "elsewhere")
    root = tmp_path / ".cuagent" / "runs"
    before = sorted(p.name for p in (tmp_path / "elsewhere").rglob("*"))
    for use in (list_runs, lambda r: new_run("t", r), lambda r: find_run(None, r)):
        with pytest.raises(RecordError, match="is a link"):
            use(root)
    assert sorted(p.name for p in (tmp_path / "elsewhere").rglob("*")) == before


def test_linked_gitignore_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".cuagent").mkdir()
    (tmp_path / ".cuagent" / ".gitignore").symlink_to(precious)
    new_run("t", tmp_path / ".cuagent" / "runs")
    assert precious.read_text() == "mine"


def test_blob_is_read_only_if_its_digest_matches(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    digest = "0" * 64
    for name, place in ((digest, folder.blobs / digest), ("../secret", None)):
        if place is not None:
            place.symlink_to(tmp_path / "secret")
        line = {"type": "session", "v": 1, "text": {"$blob": name, "form": "text"}}
        folder.log.write_text(json.dumps(line) + "\n")
        with pytest.raises(RecordError):
            read_records(folder)
    place = folder.blobs / digest
    place.unlink()
    place.write_text("another text")
    line = {"type": "session", "v": 1, "text": {"$blob": digest, "form": "text"}}
    folder.log.write_text(json.dumps(line) + "\n")
    with pytest.raises(RecordError, match="differs from the recorded sha256"):
        read_records(folder)


@pytest.mark.parametrize("name", ["../../evil", "/tmp/cuagent-evil", "a/../../../evil", "x\0y", ""])
def test_snapshot_restores_only_inside_the_work_folder(
    folder: RunFolder, tmp_path: Path, name: str
) -> None:
    (folder.work / "a").write_text("text")
    digest = take_snapshot(folder, {})["a"]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecordError, match="leads out"):
        restore_snapshot(folder, {name: digest})
    assert sorted(tmp_path.rglob("*")) == before


def test_snapshot_does_not_follow_a_linked_folder(folder: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.cu").write_text("theirs")
    (folder.work / "kernels").mkdir()
    (folder.work / "kernels" / "a.cu").write_text("mine")
    files = take_snapshot(folder, {})
    (folder.work / "kernels").rename(folder.path / "gone")
    (folder.work / "kernels").symlink_to(outside)
    assert take_snapshot(folder, {}) == {}
    restore_snapshot(folder, {})
    assert (outside / "a.cu").read_text() == "theirs"
    restore_snapshot(folder, files)
    assert (outside / "a.cu").read_text() == "theirs"
    assert (folder.work / "kernels" / "a.cu").read_text() == "mine"
    assert not (folder.work / "kernels").is_symlink()


@pytest.mark.parametrize(
    "name",
    ["../model_new.py", "/model_new.py", "kernels/../../a.cu", ".git/hooks/a.h", "a.cu", "kernels",
     "kernels/Makefile", "conftest.py"],
)  # fmt: skip
def test_attempt_from_a_log_has_only_files_of_attempts(name: str) -> None:
    assert attempt_of({"model_new.py": "x", "kernels/deep/a.cu": "y"}).kernels
    with pytest.raises(RecordError):
        attempt_of({"model_new.py": "x", name: "y"})


def test_files_are_not_read_or_written_through_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    os.mkfifo(root / "pipe")
    for name in ("folder/file", "file", "pipe"):
        with pytest.raises(OSError, match=r"link|regular|directory"):
            read_file(root, name)
    with pytest.raises(OSError, match=r"link|directory"):
        write_file(root, "folder/file", b"mine")
    assert not create_file(root, "file", b"mine")
    write_file(root, "file", b"mine")
    assert (root / "file").read_text() == "mine"
    assert (outside / "file").read_text() == "theirs"


def hostile_history(folder: RunFolder, proof: Path) -> None:
    """Write a git configuration that runs commands."""
    assert init_work(folder)
    (folder.work / "a.py").write_text("one")
    commit_work(folder, "attempt 1")
    subprocess.run(
        ["git", "--git-dir", folder.history, "config", "core.fsmonitor", f"touch {proof}; false"],
        check=True,
    )
    with (folder.history / "config").open("a") as config:
        config.write(f'[filter "evil"]\nclean = touch {proof}\n[alias]\ncommit = !touch {proof}\n')
        config.write(f"[include]\npath = {proof.parent / 'included'}\n[core]\nbare = false\n")
    (proof.parent / "included").write_text(f"[diff]\nexternal = touch {proof}\n")
    (folder.work / ".gitattributes").write_text("* filter=evil diff=evil\n")


@pytest.mark.parametrize("trusted", [True, False])
def test_configuration_of_an_existing_history_is_not_used(
    folder: RunFolder, tmp_path: Path, trusted: bool
) -> None:
    proof = tmp_path / "proof"
    hostile_history(folder, proof)
    assert init_work(folder, trusted=trusted)
    (folder.work / "a.py").write_text("two")
    commit = commit_work(folder, "attempt 2")
    assert not proof.exists()
    assert b"touch" not in (folder.history / "config").read_bytes()
    subjects = subprocess.run(
        ["git", "--git-dir", folder.history, "log", "--format=%s", commit],
        capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    assert subjects[:-1] == (["attempt 2", "attempt 1"] if trusted else ["attempt 2"])


def test_hooks_in_the_history_never_run(folder: RunFolder, tmp_path: Path) -> None:
    init_work(folder)
    proof = tmp_path / "proof"
    (folder.history / "hooks").mkdir()
    for name in ("reference-transaction", "pre-commit", "post-commit", "post-index-change"):
        hook = folder.history / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
        hook.chmod(0o755)
    assert commit_work(folder, "with hooks")
    assert init_work(folder)
    assert commit_work(folder, "attempt 1")
    assert not proof.exists()
    assert not (folder.history / "hooks").exists(), "the history with hooks was moved away"


@pytest.mark.parametrize("name", ["objects", "HEAD", "refs/heads", "index.lock", "packed-refs"])
def test_history_with_links_is_moved_away(folder: RunFolder, tmp_path: Path, name: str) -> None:
    init_work(folder)
    commit_work(folder, "attempt 1")
    outside = tmp_path / "outside"
    place = folder.history / name
    place.rename(outside) if place.exists() else outside.write_text("theirs")
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    place.symlink_to(outside)
    assert init_work(folder)
    assert commit_work(folder, "attempt 2")
    assert not place.is_symlink()
    assert {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()} == before


def test_history_with_alternates_is_moved_away(folder: RunFolder, tmp_path: Path) -> None:
    init_work(folder)
    (folder.history / "objects" / "info").mkdir(exist_ok=True)
    (folder.history / "objects" / "info" / "alternates").write_text(f"{tmp_path}\n")
    assert init_work(folder)
    assert not (folder.history / "objects" / "info" / "alternates").exists()
    assert (folder.path / "history.git.old-1").is_dir()
