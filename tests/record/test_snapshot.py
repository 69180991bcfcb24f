from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.record import FileState, RunFolder, new_run, restore_snapshot, take_snapshot


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run("t", tmp_path)


def test_restore_returns_files_to_their_snapshot(folder: RunFolder) -> None:
    known: dict[str, FileState] = {}
    one, deep = folder.work / "one.py", folder.work / "kernels" / "a.cu"
    one.write_text("one")
    one.chmod(0o444)
    first = take_snapshot(folder, known)
    deep.parent.mkdir()
    deep.write_bytes(b"\xff\x00")
    one.unlink()
    one.write_text("changed")
    second = take_snapshot(folder, known)
    assert set(second) == {"one.py", "kernels/a.cu"}
    restore_snapshot(folder, first)
    assert one.read_text() == "one"
    assert not deep.exists()
    restore_snapshot(folder, second)
    assert (one.read_text(), deep.read_bytes()) == ("changed", b"\xff\x00")
    assert take_snapshot(folder, known) == second


def test_links_and_large_files_are_not_saved_or_changed(folder: RunFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("safe")
    empty = take_snapshot(folder, {})
    (folder.work / "link").symlink_to(outside)
    (folder.work / "data.bin").write_bytes(bytes(2 << 20))
    (folder.work / ".outputs").mkdir()
    (folder.work / ".outputs" / "bash-1.txt").write_text("long")
    assert take_snapshot(folder, {}) == empty == {}
    restore_snapshot(folder, empty)
    assert sorted(p.name for p in folder.work.iterdir()) == [".outputs", "data.bin", "link"]


def test_restore_replaces_a_link_and_keeps_its_target(folder: RunFolder, tmp_path: Path) -> None:
    file, outside = folder.work / "a.py", tmp_path / "outside"
    outside.write_text("safe")
    file.write_text("mine")
    files = take_snapshot(folder, {})
    file.unlink()
    file.symlink_to(outside)
    restore_snapshot(folder, files)
    assert outside.read_text() == "safe"
    assert file.read_text() == "mine"
    assert not file.is_symlink()
