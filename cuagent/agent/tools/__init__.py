"""The tools, in the order in which the model sees them (a fixed order keeps prompt caches warm)."""

from cuagent.agent.tools import (
    bash,
    compile,
    edit,
    glob,
    grep,
    profile,
    read,
    submit,
    verify,
    write,
)
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult

TOOLS: tuple[Tool, ...] = (
    bash.TOOL,
    read.TOOL,
    write.TOOL,
    edit.TOOL,
    glob.TOOL,
    grep.TOOL,
    compile.TOOL,
    verify.TOOL,
    profile.TOOL,
    submit.TOOL,
)

__all__ = ["TOOLS", "Context", "Tool", "ToolError", "ToolResult"]
