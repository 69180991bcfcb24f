"""Tool `grep`: find lines of files in the work folder that match a Python regular expression.

The search runs in a separate process, because an expression that backtracks endlessly can only be
killed. It opens the files beneath the work folder's descriptor, so it follows no link out of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuagent.agent.run import Run
from cuagent.agent.tools.files import LARGEST, listed, opened_work
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

MOST = 200
"""Largest number of matching lines shown."""
LONGEST_LINE = 240
"""Largest number of characters shown of one matching line."""
SEARCH_SECONDS = 20.0
"""Time limit of the search in seconds."""


def grep(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, pattern = context.run, arguments["pattern"]
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"{pattern[:200]!r}: not a regular expression ({error})") from error
    wanted = arguments.get("files", "**/*")
    names = [name for name, _ in listed(run, wanted)]
    if not names:
        return ToolResult(f"no file matches {wanted[:200]!r}", {"count": 0})
    lines, count = _search(run, pattern, names)
    if not count:
        return ToolResult(f"no line matches in {len(names)} files", {"count": 0})
    more = [f"... and {count - MOST} more"] if count > MOST else []
    return ToolResult("\n".join(lines[:MOST] + more), {"count": count})


def _search(run: Run, pattern: str, names: list[str]) -> tuple[list[str], int]:
    """Search the files `names` in a separate process.

    Returns the first matching lines and the number of all. Raises ToolError.
    """
    with opened_work(run) as work:
        request = {
            "pattern": pattern,
            "work": work,
            "files": names,
            "largest": LARGEST,
            "longest_line": LONGEST_LINE,
            "most": MOST,
        }
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("search.py"))]
        try:
            done = subprocess.run(
                argv,
                input=json.dumps(request),
                env={},
                pass_fds=(work,),
                capture_output=True,
                text=True,
                timeout=SEARCH_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolError(
                f"no answer in {SEARCH_SECONDS:g} s; use a simpler expression"
            ) from error
    answer = json.loads(done.stdout)
    return answer["lines"], answer["count"]


TOOL = Tool(
    "grep",
    schema(
        ["pattern"],
        pattern={"type": "string", "description": "A regular expression."},
        files={
            "type": "string",
            "description": "Pattern of the files to search, such as kernels/*; all by default.",
        },
    ),
    grep,
    shown="pattern",
)
