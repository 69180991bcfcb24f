"""The whole loop over HTTP with faults; every protocol gives the same conversation."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from provider import serve

from cuagent.agent import TOOLS, Run, Stop, run_agent, start_run
from cuagent.models.anthropic import AnthropicModel
from cuagent.models.endpoint import ANTHROPIC, OPENAI
from cuagent.models.openai import OpenAIModel
from cuagent.models.responses import ResponsesModel
from cuagent.record import conversation, read_records
from cuagent.task import load_task

SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(4)]


def get_init_inputs():
    return []
"""
CALLS = [
    ("Two at once.", [("c1", "bash", '{"command": "echo one"}'), ("c2", "nonsense", "{}")]),
    ("Malformed.", [("c3", "write", '{"path": "a.py", "text": "x')]),
    ("An id again.", [("c1", "write", '{"path": "a.py", "text": "x = 1\\n"}')]),
    ("No call.", []),
    ("The end.", [("c5", "submit", "{}"), ("c6", "bash", '{"command": "echo late"}')]),
]
FAULTS = [{"status": 429}, {"drop": True, "blocks": []}, {"status": 500}]


def answers() -> list[dict[str, Any]]:
    """Return the answers in the form of every protocol, with faults between them."""
    made: list[dict[str, Any]] = []
    for text, calls in CALLS:
        openai = [{"id": i, "name": n, "arguments": a} for i, n, a in calls]
        uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
        made.append(
            {"text": text, "calls": openai, "blocks": [{"type": "text", "text": text}, *uses]}
        )
    return [FAULTS[0], made[0], FAULTS[1], made[1], made[2], FAULTS[2], *made[3:]]


def run_of(tmp_path: Path) -> Run:
    file = tmp_path / "plus.py"
    file.write_text(SOURCE)
    unused: Any = None  # nothing is judged here
    specs = [tool.spec for tool in TOOLS]
    task = load_task(str(file), device="cpu")
    return start_run(task, unused, model="test", tools=specs, root=tmp_path / "runs")


MODELS = {"openai": OpenAIModel, "responses": ResponsesModel, "anthropic": AnthropicModel}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", MODELS)
def test_loop_over_http_gives_the_same_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key-123456")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-key-123456")
    run = run_of(tmp_path)
    with serve(*answers()) as provider:
        endpoint = ANTHROPIC if protocol == "anthropic" else OPENAI
        make: Any = MODELS[protocol]
        model = make("m", replace(endpoint, base_url=provider.url, retry_delay=0.01))
        stop = run_agent(run, model)
        asked = provider.requests
    assert stop is Stop.NO_GAIN
    assert run.steps == 5
    said = [m.content for m in run.messages if m.role == "assistant"]
    assert said == [text for text, _ in CALLS]
    results = [m.content for m in run.messages if m.role == "tool"]
    assert results[0] == "one"
    assert "no tool 'nonsense'" in results[1]
    assert "not valid JSON" in results[2]
    assert results[3] == "wrote a.py (1 lines)"
    assert results[5].startswith("not executed")
    assert conversation(read_records(run.folder)) == run.messages
    assert "planted-key" not in run.folder.log.read_text()
    # prompt caches stay valid if each request starts with the previous one
    for earlier, later in pairwise(asked):
        assert earlier["tools"] == later["tools"]
        field = "input" if protocol == "responses" else "messages"
        prefix = json.dumps(unmarked(earlier[field])).rstrip("]}")
        assert json.dumps(unmarked(later[field])).startswith(prefix)


def unmarked(value: Any) -> Any:
    """Remove the cache breakpoints, which move and are not content."""
    if isinstance(value, dict):
        return {k: unmarked(v) for k, v in value.items() if k != "cache_control"}
    return [unmarked(v) for v in value] if isinstance(value, list) else value
