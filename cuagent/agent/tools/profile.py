"""Tool `profile`: show how the time of the reference or the candidate divides among its
operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.candidate import frozen
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.attempt import MODULE
from cuagent.measure.profile.profile import MAX_LINES, ProfileError


def profile(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    has_candidate = (run.work / MODULE).is_file()
    what = arguments.get("what", "candidate" if has_candidate else "reference")
    try:
        attempt = frozen(run) if what == "candidate" else None
        counters = bool(arguments.get("counters", False))
        found = run.measured("profile", lambda judge: judge.profile(attempt, counters=counters))
    except ProfileError as error:
        raise ToolError(f"{what}: {error}") from error
    number = next((t.n for t in run.tried if attempt and t.attempt.digest == attempt.digest), None)
    title = f"{what}, which is attempt {number}" if number else what
    lines = [f"{title}:", *found.lines()][:MAX_LINES]
    return ToolResult("\n".join(lines), {"what": what, "profile": found.to_json()})


TOOL = Tool(
    "profile",
    schema(
        what={
            "type": "string",
            "enum": ["candidate", "reference"],
            "description": "By default the candidate in your work folder, if there is one.",
        },
        counters={
            "type": "boolean",
            "description": "CUDA only: add hardware counters of each launch; takes some 10 s more.",
        },
    ),
    profile,
    shown="what",
)
