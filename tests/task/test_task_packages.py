"""Installed packages of a task's file are found; local files, the library and torch are not."""

from __future__ import annotations

import pytest

from cuagent.task.packages import installed_imports


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pytest", ("pytest",)),
        ("import hypothesis.strategies as st", ("hypothesis.strategies",)),
        ("from rich.text import Text, Span", ("rich.text:Text", "rich.text:Span")),
        ("from rich import *", ()),
        ("import torch\nimport numpy as np\nfrom torch import nn", ()),
        ("import os, math\nfrom collections import deque", ()),
        ("from . import pytest\nfrom .rich import text", ()),
        ("import a_module_that_is_not_there", ()),
        ("def forward():\n    import pytest", ()),
        ("import pytest\nthis is no Python", ()),
    ],
)
def test_packages_of_a_file(text: str, found: tuple[str, ...]) -> None:
    assert installed_imports(text) == found


def test_local_file_is_not_imported_ahead(tmp_path, monkeypatch) -> None:
    (tmp_path / "layers_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_imports("import layers_of_mine") == ()
