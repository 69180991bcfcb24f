"""Fixtures for tests of the agent: a run on a small real task without a judge, and a function that
calls tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scale_task import SOURCE

from cuagent.agent import TOOLS, Budget, Run, start_run
from cuagent.agent.tools.tool import Context, ToolResult, execute
from cuagent.events import Event
from cuagent.message import ToolCall
from cuagent.task import load_task

Call = Callable[..., ToolResult]


class NoJudge:
    """Placeholder for a judge whose every access raises an error, because these tests judge
    nothing."""


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def run(tmp_path: Path, events: list[Event]) -> Run:
    file = tmp_path / "scale.py"
    file.write_text(SOURCE)
    task = load_task(str(file), device="cpu")
    judge: Any = NoJudge()
    return start_run(
        task,
        judge,
        model="scripted",
        tools=[tool.spec for tool in TOOLS],
        budget=Budget(steps=40),
        root=tmp_path / ".cuagent" / "runs",
        emit=events.append,
    )


@pytest.fixture
def call(run: Run) -> Call:
    """Return a function that calls a tool by name as the agent's loop does."""

    def call(name: str, raw: str | None = None, **arguments: Any) -> ToolResult:
        tool = next((tool for tool in TOOLS if tool.name == name), None)
        request = ToolCall("c1", name, json.dumps(arguments) if raw is None else raw)
        return execute(request, tool, TOOLS, Context(run, "c1", run.emit))

    return call
