"""todo: the model's own list of what it wants to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

STATES = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}
MOST = 40


def todo(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    items = [{"text": item["text"], "state": item["state"]} for item in arguments["items"]]
    if len(items) > MOST:
        raise ToolError(f"{len(items)} items; keep it to {MOST}")
    if sum(item["state"] == "doing" for item in items) > 1:
        raise ToolError("more than one item is doing; do one thing at a time")
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
                text={"type": "string", "description": "What to try, and what you expect."},
                state={"type": "string", "enum": list(STATES), "description": "How it stands."},
            ),
        },
    ),
    todo,
)
