"""Tool `baseline`: measure the ladder, that is, the ways to run the reference faster without a
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.ladder import measure_ladder
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema
from cuagent.agent.wording import rung_lines


def baseline(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    ladder = measure_ladder(context.run, whole=True)
    times = {rung.name: rung.seconds for rung in ladder.rungs if not rung.failed}
    best = ladder.best.name if ladder.best else None
    return ToolResult("\n".join(rung_lines(ladder)), {"times": times, "best": best})


TOOL = Tool("baseline", schema(), baseline)
