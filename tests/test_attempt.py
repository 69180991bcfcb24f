"""What of a candidate's folder is taken along, and what is told where something would be left."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.attempt import AttemptError, freeze


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_cpp", ".cpp").replace("_h", ".h")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("model", "files"),
    [
        ('load("a.cpp")', {"a_cpp": ""}),
        ('load("kernels/a.cpp")', {"a_cpp": ""}),
        ('load("csrc/a.cpp")', {"csrc__a_cpp": ""}),
        ('load("kernels/b.cpp")', {"kernels__b_cpp": '#include "a.h"', "a_h": ""}),
    ],
)
def test_a_source_that_would_be_left_behind_is_named(
    tmp_path: Path, model: str, files: dict[str, str]
) -> None:
    (tmp_path / "model_new.py").write_text(model)
    with pytest.raises(AttemptError, match=r"a\.(cpp|h): lies outside kernels/.*; move it to kern"):
        freeze(folder(tmp_path, **files))


def test_what_nobody_names_may_lie_beside_and_a_module_brings_its_kernels(tmp_path: Path) -> None:
    (tmp_path / "model_new.py").write_text('load("kernels/a.cpp"); "sub/none.cpp"')
    made = freeze(folder(tmp_path, kernels__a_cpp="", notes_cpp="") / "model_new.py")
    assert [name for name, _ in made.files] == ["kernels/a.cpp", "model_new.py"]
