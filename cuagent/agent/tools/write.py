"""Tool `write`: write a whole file. An existing file must have been read in its current state."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

from cuagent.agent.tools.files import confined, require_seen, save, text_if_there
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

LARGEST_COMPARED = 200_000
"""Largest number of characters of old and new text together for which a diff is made."""
LONGEST_DIFF = 2_000
"""Largest number of lines of a diff in the log and the views."""


def write(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, text = context.run, arguments["text"]
    name = confined(run, arguments["path"])
    if not name:
        raise ToolError("the path names your work folder; add a file name")
    before = text_if_there(run, name)
    if before is not None:
        require_seen(run, name, before)
    save(run, name, text)
    lines = len(text.splitlines())
    verb = "wrote" if before is None else "replaced"
    data: dict[str, Any] = {"path": name, "lines": lines}
    if before is not None:
        data["diff"] = _diff(before, text)
    return ToolResult(f"{verb} {name} ({lines} lines)", data)


def _diff(before: str, after: str) -> str:
    """Return the unified diff of two texts without its two header lines; "" if it is too long."""
    if len(before) + len(after) > LARGEST_COMPARED:
        return ""
    rows = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))
    return "\n".join(rows[2:]) if len(rows) <= LONGEST_DIFF else ""


TOOL = Tool(
    "write",
    schema(
        ["path", "text"],
        path={"type": "string", "description": "Path relative to your work folder."},
        text={"type": "string", "description": "The whole content of the file."},
    ),
    write,
    shown="path",
    changes=True,
)
