"""Tool `todo`: store the model's list of ideas to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

STATES = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}
MOST = 40
"""Largest number of items of the list."""


def todo(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    items = [{"text": item["text"], "state": item["state"]} for item in arguments["items"]]
    if len(items) > MOST:
        raise ToolError(f"{len(items)} items; keep at most {MOST}")
    if sum(item["state"] == "doing" for item in items) > 1:
        raise ToolError("more than one item is doing; work on one item at a time")
    context.run.todo = items
    lines = [f"{STATES[item['state']]} {item['text']}" for item in items]
    return ToolResult("\n".join(lines) or "the list is empty", {"todo": items})


TOOL = Tool(
    "todo",
    schema(
        ["items"],
        items={
            "type": "array",
            "description": "The whole list.",
            "items": schema(
                ["text", "state"],
                text={"type": "string", "description": "The idea, and the effect that you expect."},
                state={"type": "string", "enum": list(STATES), "description": "State of the item."},
            ),
        },
    ),
    todo,
)
