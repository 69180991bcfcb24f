"""write: a whole file. One that exists must have been read as it now is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.files import confined, require_seen, save, text_if_there
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema


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
    return ToolResult(f"{verb} {name} ({lines} lines)", {"path": name, "lines": lines})


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
