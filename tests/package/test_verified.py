"""The file with the verified calls of a package: damage is reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.package.verified import read_verified


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"tensors": [], "nesting": ["tensor"]}'])
def test_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "verified.json"
    path.write_text(text)
    with pytest.raises(RuntimeError, match=r"verified.json is damaged; export the package again"):
        read_verified(path)
