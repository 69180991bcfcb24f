"""Tool `bash_kill`: kill a background command and every process that it has started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.bash_output import job_of
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema


def bash_kill(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    job = job_of(context.run, arguments["job"])
    had_ended = job.process.poll() is not None
    job.kill()
    text = f"{job.name} had ended already" if had_ended else f"killed {job.name}"
    return ToolResult(text, {"job": job.name})


TOOL = Tool(
    "bash_kill",
    schema(["job"], job={"type": "string", "description": "The name that bash returned."}),
    bash_kill,
    shown="job",
)
