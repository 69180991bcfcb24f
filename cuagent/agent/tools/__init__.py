"""The tools of the agent, in the order in which the model sees them.

The order never changes, so that a provider's prompt cache stays valid.
"""

from cuagent.agent.tools import (
    baseline,
    bash,
    bash_kill,
    bash_output,
    compile,
    edit,
    glob,
    grep,
    multi_edit,
    profile,
    read,
    submit,
    todo,
    verify,
    write,
)
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult

TOOLS: tuple[Tool, ...] = (
    bash.TOOL,
    read.TOOL,
    write.TOOL,
    edit.TOOL,
    multi_edit.TOOL,
    glob.TOOL,
    grep.TOOL,
    bash_output.TOOL,
    bash_kill.TOOL,
    todo.TOOL,
    baseline.TOOL,
    compile.TOOL,
    verify.TOOL,
    profile.TOOL,
    submit.TOOL,
)

__all__ = ["TOOLS", "Context", "Tool", "ToolError", "ToolResult"]
