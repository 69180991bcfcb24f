"""write: a whole file. One that exists must have been read as it now is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.files import confined, require_seen, save, shown, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema


def write(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, text = context.run, arguments["text"]
    path = confined(run, arguments["path"])
    if path == run.work.resolve():
        raise ToolError("the path names your work folder; add a file name")
    name = shown(run, path)
    existed = path.exists()
    if existed:
        require_seen(run, path, name, text_of(path, name))
    save(run, path, text, name)
    lines = len(text.splitlines())
    verb = "replaced" if existed else "wrote"
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
