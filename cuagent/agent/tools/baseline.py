"""baseline: the ladder, which is every way to run the reference quicker without a new kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.ladder import measure_ladder
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema
from cuagent.agent.wording import rung_lines


def baseline(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    found = measure_ladder(context.run, whole=True)
    times = {rung.name: rung.seconds for rung in found.rungs if not rung.failed}
    best = found.best.name if found.best else None
    return ToolResult("\n".join(rung_lines(found)), {"times": times, "best": best})


TOOL = Tool("baseline", schema(), baseline)
