"""Tests of folders that a candidate nested deeply."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from cuagent.worker.folder import remove, usage


@pytest.mark.parametrize("depth", [3, 2500])
def test_remove_deletes_a_folder_of_any_depth(tmp_path: Path, depth: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    assert math.isinf(usage(top)[0]) == (depth > 1000)
    remove(top)
    assert not top.exists()


def test_usage_counts_files_in_subfolders(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(1 << 20))
    (tmp_path / "link").symlink_to("/")
    size, names = usage(tmp_path)
    assert 1 << 20 <= size < 1 << 21
    assert names == 3
