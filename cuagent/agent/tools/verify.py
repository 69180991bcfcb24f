"""Tool `verify`: freeze and judge the candidate, and record it as a numbered attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.candidate import figures, frozen, judged
from cuagent.agent.tools.tool import Context, Tool, ToolResult, schema
from cuagent.agent.wording import judgement_lines, next_line
from cuagent.timing import Effort


def verify(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    attempt = frozen(run)
    again = any(t.attempt.digest == attempt.digest for t in run.tried)
    # An accepted attempt stays accepted: its timing alone must not refuse it.
    accepted = any(t.attempt.digest == attempt.digest and t.accepted for t in run.tried)
    ahead = bool(arguments.get("only_if_faster")) and not accepted
    than = run.best.judgement.timing if ahead and run.best else None
    begun = time.monotonic()
    judgement = judged(run, attempt, Effort.QUICK, than)
    seconds = round(time.monotonic() - begun, 1)
    tried = run.register(attempt, judgement)
    best = run.best
    lines = list(judgement_lines(tried, best=best is not None and best.n == tried.n))
    if tried.accepted:
        lines.append(next_line(tried.judgement.timing))
    if again:
        lines.append(f"(the same text as before; it remains attempt {tried.n})")
    if tried.accepted and best and best.n != tried.n:
        lines.append(f"the best is still attempt {best.n}")
    data = figures(tried) | {"judged_s": seconds}
    return ToolResult("\n".join(lines), data, is_error=not tried.accepted)


TOOL = Tool(
    "verify",
    schema(
        only_if_faster={
            "type": "boolean",
            "description": "Time the candidate first, and do not verify it if it is surely slower "
            "than the best attempt. False by default.",
        }
    ),
    verify,
)
