"""Definitions that a class of the user's files needs, as text."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cuagent.capture.sources import Sources

TEXT = """
import collections
import sys

Pair = collections.namedtuple("Pair", "a b")

if sys.version_info > (3,):
    class Chosen:
        def value(self):
            return Pair(1, 2)
    def helper():
        return 1
else:
    class Chosen:
        def value(self):
            return 2
    def helper():
        return 2
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    (tmp_path / "users_choices.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("users_choices")
    return Sources()


def test_the_class_and_function_of_the_branch_that_ran_are_copied(sources: Sources) -> None:
    sources.need("users_choices", "Chosen")
    sources.need("users_choices", "helper")
    text = sources.text("users_choices")
    assert "return Pair(1, 2)" in text
    assert "return 1" in text
    assert "return 2" not in text


def test_a_class_that_a_call_makes_is_copied_as_the_call(sources: Sources) -> None:
    sources.need("users_choices", "Pair")
    assert 'Pair = collections.namedtuple("Pair", "a b")' in sources.text("users_choices")
