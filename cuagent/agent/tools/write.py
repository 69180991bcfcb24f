"""write: a whole file. One that exists must have been read as it now is."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

from cuagent.agent.tools.files import confined, require_seen, save, shown, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

LARGEST_COMPARED = 200_000
"""Characters of both texts; comparing more takes too long."""
LONGEST_DIFF = 2_000
"""Lines."""


def write(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, text = context.run, arguments["text"]
    path = confined(run, arguments["path"])
    if path == run.work.resolve():
        raise ToolError("the path names your work folder; add a file name")
    name = shown(run, path)
    before = None
    if path.exists():
        before = text_of(path, name)
        require_seen(run, path, name, before)
    save(run, path, text, name)
    lines = len(text.splitlines())
    verb = "wrote" if before is None else "replaced"
    data: dict[str, Any] = {"path": name, "lines": lines}
    if before is not None:
        data["diff"] = _diff(before, text)
    return ToolResult(f"{verb} {name} ({lines} lines)", data)


def _diff(before: str, after: str) -> str:
    """What was changed, for the views: unified, without file names; "" where that is too much."""
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
