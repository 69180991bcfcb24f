"""Tool `read`: show a file, or a range of its lines, with line numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.files import confined, mark_seen, skill_text, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

DEFAULT_LINES = 600
LONGEST_LINE = 1000
"""Largest number of characters shown of one line."""
LONGEST = 48_000
"""Number of characters at which a result of the tool ends, after the current line."""


def read(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    name, first = arguments["path"], arguments.get("first", 1)
    text = skill_text(context.run, name)
    if text is None:
        path = confined(context.run, name)
        text = text_of(context.run, path)
        mark_seen(context.run, path, text)
    lines = text.splitlines()
    if not lines:
        return ToolResult(f"{name} is empty", {"lines": 0})
    if first > len(lines):
        raise ToolError(f"{name}: has {len(lines)} lines; first is {first}")
    shown: list[str] = []
    size = 0
    for line in lines[first - 1 : first - 1 + arguments.get("lines", DEFAULT_LINES)]:
        shown.append(f"{first + len(shown):>5}  {_cut(line)}")
        size += len(shown[-1])
        if size > LONGEST:
            break
    last = first + len(shown) - 1
    if last < len(lines):
        shown.append(f"... lines {last + 1} to {len(lines)} follow; continue with first={last + 1}")
    return ToolResult("\n".join(shown), {"lines": len(lines), "first": first, "last": last})


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ... [cut]"


TOOL = Tool(
    "read",
    schema(
        ["path"],
        path={"type": "string", "description": "Path relative to your work folder."},
        first={"type": "integer", "minimum": 1, "description": "First line, 1 by default."},
        lines={
            "type": "integer",
            "minimum": 1,
            "description": f"Number of lines, {DEFAULT_LINES} by default.",
        },
    ),
    read,
    shown="path",
)
