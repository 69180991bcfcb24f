"""grep: lines that match a regular expression, by ripgrep where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
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
        expression = re.compile(pattern)
    except re.error as error:
        raise ToolError(f"{pattern!r}: not a regular expression ({error})") from error
    files = listed(run, arguments.get("files", "**/*"))
    ripgrep = shutil.which("rg")
    found = _by_ripgrep(ripgrep, run, pattern, files) if ripgrep else None
    if found is None:
        found = list(_by_python(run, expression, files))
    if not found:
        return ToolResult(f"no line matches in {len(files)} files", {"count": 0})
    more = [f"... and {len(found) - MOST} more"] if len(found) > MOST else []
    return ToolResult("\n".join(found[:MOST] + more), {"count": len(found)})


def _by_python(run: Run, expression: re.Pattern[str], files: list[Path]) -> Iterator[str]:
    for path in files:
        if path.stat().st_size > LARGEST:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if expression.search(line):
                yield f"{shown(run, path)}:{number}: {line[:LONGEST_LINE]}"


def _by_ripgrep(ripgrep: str, run: Run, pattern: str, files: list[Path]) -> list[str] | None:
    """The lines, or None where ripgrep cannot say (its expressions differ a little)."""
    if not files:
        return []
    argv = [ripgrep, "--line-number", "--no-heading", "--with-filename", "--color=never"]
    argv += ["--no-config", "--no-ignore", "--sort=path", f"--max-columns={LONGEST_LINE}"]
    names = [shown(run, path) for path in files]
    try:
        done = subprocess.run(
            [*argv, "--regexp", pattern, "--", *names],
            cwd=run.work,
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
    return [re.sub(r"^(.*?:\d+):", r"\1: ", line, count=1) for line in lines]


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
