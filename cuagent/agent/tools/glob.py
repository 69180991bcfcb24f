"""Tool `glob`: list the files of the work folder that match a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.files import listed
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema

MOST = 200
"""Largest number of files that the tool lists."""


def glob(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    found = [
        f"{name}  {size:,} bytes" for name, size in listed(run, arguments.get("pattern", "**/*"))
    ]
    if not found:
        return ToolResult("no file matches", {"count": 0})
    more = [f"... and {len(found) - MOST} more"] if len(found) > MOST else []
    return ToolResult("\n".join(found[:MOST] + more), {"count": len(found)})


TOOL = Tool(
    "glob",
    schema(
        pattern={
            "type": "string",
            "description": "A pattern such as kernels/*.cu; **/* (all files) by default.",
        },
    ),
    glob,
    shown="pattern",
)
