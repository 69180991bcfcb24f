"""Tool `compile`: build the kernels; show the compiler's messages and each kernel's resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.candidate import frozen
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema
from cuagent.agent.wording import build_lines
from cuagent.record import plain


def compile(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    attempt = frozen(context.run, needs_module=False)
    build = context.run.consult(lambda judge: judge.build(attempt))
    data = {
        "ok": build.ok,
        "digest": attempt.digest,
        "seconds": build.seconds,
        "diagnostics": plain(build.diagnostics),
        "resources": {lib.source: plain(lib.resources) for lib in build.libraries},
    }
    lines = list(build_lines(build))
    if not attempt.kernels:
        lines.append("kernels/ has no .cu or .cpp file, so there was nothing to compile")
    return ToolResult("\n".join(lines), data, is_error=not build.ok)


TOOL = Tool("compile", schema(), compile)
