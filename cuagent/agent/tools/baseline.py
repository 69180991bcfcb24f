"""baseline: the ladder, which is every way to run the reference quicker without a new kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema
from cuagent.agent.wording import duration

if TYPE_CHECKING:
    from cuagent.measure.ladder import Rung


def baseline(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    from cuagent.measure.ladder import ladder

    run = context.run
    found = run.measured("baseline", lambda judge: ladder(judge.referee, emit=context.emit))
    best = found.best.name if found.best else None
    lines = [_line(rung, rung.name == best) for rung in found.rungs]
    times = {rung.name: rung.seconds for rung in found.rungs if not rung.failed}
    return ToolResult("\n".join([*lines, *found.notes]), {"times": times, "best": best})


def _line(rung: Rung, best: bool) -> str:
    if rung.failed:
        return f"{rung.name}: failed: {' '.join(rung.failed.split())[:160]}"
    parts = [duration(rung.seconds)]
    if (over := rung.over_eager) is not None and rung.name != "eager":
        parts.append(f"{over.value:.2f}x over eager [{over.low:.2f}, {over.high:.2f}]")
    if not rung.admitted:
        parts.append("of a precision that the task does not admit")
    elif not rung.right:
        parts.append("not right by the strict rule")
    if best:
        parts.append("the one to beat")
    return f"{rung.name}: {', '.join(parts)}"


TOOL = Tool("baseline", schema(), baseline)
