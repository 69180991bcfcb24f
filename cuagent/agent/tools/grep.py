"""grep: lines that match a regular expression, by ripgrep where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuagent.agent.run import Run
from cuagent.agent.tools.files import LARGEST, listed, shown
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

MOST = 200
LONGEST_LINE = 240
PATIENCE = 20.0
"""Seconds for ripgrep."""


def grep(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, pattern = context.run, arguments["pattern"]
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolError(f"{pattern[:200]!r}: not a regular expression ({error})") from error
    wanted = arguments.get("files", "**/*")
    files = listed(run, wanted)
    if not files:
        return ToolResult(f"no file matches {wanted[:200]!r}", {"count": 0})
    ripgrep = shutil.which("rg")
    found = _by_ripgrep(ripgrep, run, pattern, files) if ripgrep else None
    lines, count = found or _by_python(run, pattern, files)
    if not count:
        return ToolResult(f"no line matches in {len(files)} files", {"count": 0})
    more = [f"... and {count - MOST} more"] if count > MOST else []
    return ToolResult("\n".join(lines[:MOST] + more), {"count": count})


def _by_python(run: Run, pattern: str, files: list[Path]) -> tuple[list[str], int]:
    """The first lines and how many there are. Raises ToolError."""
    request = {
        "pattern": pattern,
        "files": [(shown(run, path), str(path)) for path in files],
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
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"no answer in {PATIENCE:g} s; use a simpler expression") from error
    answer = json.loads(done.stdout)
    return answer["lines"], answer["count"]


def _by_ripgrep(
    ripgrep: str, run: Run, pattern: str, files: list[Path]
) -> tuple[list[str], int] | None:
    """Like `_by_python`; None where ripgrep cannot say (its expressions differ a little)."""
    if not files:
        return [], 0
    argv = [ripgrep, "--line-number", "--no-heading", "--with-filename", "--color=never"]
    argv += ["--no-config", "--no-ignore", "--sort=path", f"--max-columns={LONGEST_LINE}"]
    names = [shown(run, path) for path in files]
    try:
        done = subprocess.run(
            [*argv, "--regexp", pattern, "--", *names],
            cwd=run.work,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode > 1:
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [re.sub(r"^(.*?:\d+):", r"\1: ", line, count=1) for line in lines[:MOST]], len(lines)


TOOL = Tool(
    "grep",
    schema(
        ["pattern"],
        pattern={"type": "string", "description": "A regular expression."},
        files={
            "type": "string",
            "description": "Which files to search, such as kernels/*; all by default.",
        },
    ),
    grep,
    shown="pattern",
)
