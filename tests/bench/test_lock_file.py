"""Tests of the GPUs' lock files: other users can write to the folder above them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from cuagent.bench.lock_file import lock_file


def test_folder_of_another_user_or_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = lock_file("0").parent
    assert lock_file("1").parent == folder, "a second benchmark uses the same folder"
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is a link"):
        lock_file("0")
