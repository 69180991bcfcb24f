from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cuagent.agent import Run
from cuagent.agent.tools.tool import ToolResult

Call = Callable[..., ToolResult]


def one(path: str, old: str, new: str) -> dict[str, Any]:
    return {"path": path, "old": old, "new": new}


@pytest.fixture
def files(call: Call, run: Run) -> Run:
    call("write", path="a.py", text="one\ntwo\n")
    call("write", path="kernels/b.cpp", text="three\n")
    return run


def test_multi_edit_applies_edits_in_order(call: Call, files: Run) -> None:
    edits = [one("a.py", "one", "1"), one("kernels/b.cpp", "three", "3"), one("a.py", "1\n", "0\n")]
    result = call("multi_edit", edits=edits)
    assert not result.is_error
    assert (files.work / "a.py").read_text() == "0\ntwo\n"
    assert (files.work / "kernels/b.cpp").read_text() == "3\n"
    assert result.data == {"paths": ["a.py", "kernels/b.cpp"], "count": 3}


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (one("a.py", "twoo", "2"), "edit 2: a.py: old does not occur in the file"),
        (one("c.py", "x", "y"), "edit 2: c.py: no such file"),
        (one("reference.py", "torch", "y"), "edit 2: reference.py is the task and must not"),
        ({"path": "a.py", "old": "two"}, "argument 'edits[1].new' is missing"),
        ({"path": 3, "old": "two", "new": ""}, "'edits[1].path' must be of type string, not int"),
        ([], "'edits[1]' must be of type object, not list"),
    ],
)
def test_multi_edit_changes_no_file_if_one_edit_fails(
    call: Call, files: Run, last: Any, message: str
) -> None:
    result = call("multi_edit", edits=[one("a.py", "one", "1"), last])
    assert result.is_error
    assert message in result.text
    assert (files.work / "a.py").read_text() == "one\ntwo\n"


def test_multi_edit_restores_files_if_a_write_fails(call: Call, files: Run) -> None:
    call("read", path="reference.py")
    call("edit", path="a.py", old="two", new="2")
    edits = [one("a.py", "one", "1"), one("reference.py", "import torch\n", "import os\n")]
    result = call("multi_edit", edits=edits)
    assert "reference.py is the task and must not change" in result.text
    assert (files.work / "a.py").read_text() == "one\n2\n"
    again = call("edit", path="a.py", old="one", new="1")
    assert not again.is_error


def test_todo_list_is_stored_and_shown(call: Call, run: Run) -> None:
    items = [{"text": "fuse", "state": "doing"}, {"text": "float4", "state": "open"}]
    result = call("todo", items=items)
    assert result.text == "[>] fuse\n[ ] float4"
    assert run.todo == items
    twice = [{"text": "a", "state": "doing"}] * 2
    assert "work on one item at a time" in call("todo", items=twice).text
    wrong = call("todo", items=[{"text": "a", "state": "maybe"}]).text
    assert "'items[0].state' must be one of open, doing, done, dropped" in wrong
