"""Tool `edit`: replace a text that occurs exactly once in a file.

If the text does not occur, the error shows the most similar region of the file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from cuagent.agent.tools.files import confined, require_seen, save, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

CONTEXT_LINES = 3
"""Number of lines shown before and after a change."""
MOST_SHOWN = 40
"""Largest number of lines shown of one region of a file."""
LONGEST_SEARCH = 4000
"""Number of lines from the start of a file in which a similar region is searched."""
SEARCH_SECONDS = 2.0
"""Time limit in seconds of the search for a similar region."""


def edit(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    name = confined(run, arguments["path"])
    text = text_of(run, name)
    require_seen(run, name, text)
    change = changed(name, text, arguments)
    save(run, name, change.text)
    data = {"path": name, "count": change.count}
    return ToolResult(f"{change.title}:\n{change.region}", data)


@dataclass(frozen=True)
class Change:
    """Result of one edit: the new text of the file, with a title and the changed region for the
    model.
    """

    title: str
    text: str
    region: str
    count: int


def changed(name: str, text: str, arguments: Mapping[str, Any]) -> Change:
    """Apply one edit (`arguments` of the tool) to the text of file `name`. Raises ToolError."""
    old, new = arguments["old"], arguments["new"]
    _check(name, text, old, new, everywhere=arguments.get("all", False))
    count = text.count(old)
    first = text[: text.index(old)].count("\n") + 1
    after = text.replace(old, new)
    region = _numbered(after, first - CONTEXT_LINES, first + new.count("\n") + CONTEXT_LINES)
    times = f" in {count} places" if count > 1 else ""
    return Change(f"changed {name}{times}", after, region, count)


def _check(name: str, text: str, old: str, new: str, *, everywhere: bool) -> None:
    if not old:
        raise ToolError("old is empty; use write to create a file")
    if old == new:
        raise ToolError("old and new are the same")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"{name}: old does not occur in the file{_why(text, old)}")
    if count > 1 and not everywhere:
        lines = ", ".join(str(n) for n in _lines_of(text, old)[:10])
        raise ToolError(
            f"{name}: old occurs {count} times (lines {lines}); add lines around it until it is "
            "unique, or set all"
        )


def _why(text: str, old: str) -> str:
    """Return the reason why `old` was not found in `text`, with the most similar region."""
    cause = ""
    if _squeezed(old) in _squeezed(text):
        cause = "; it differs only in white space"
    first, last = _nearest(text.splitlines(), old.splitlines())
    return f"{cause}. The most similar region is\n{_numbered(text, first, last)}"


def _nearest(lines: list[str], wanted: list[str]) -> tuple[int, int]:
    """Return the first and last line number (from 1) of the region most similar to `wanted`."""
    size = max(1, len(wanted))
    target = "\n".join(line.strip() for line in wanted)[:2000]
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    best, place = -1.0, 0
    deadline = time.monotonic() + SEARCH_SECONDS
    for start in range(max(1, min(len(lines), LONGEST_SEARCH) - size + 1)):
        window = "\n".join(line.strip() for line in lines[start : start + size])[:2000]
        matcher.set_seq1(window)
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        ratio = matcher.ratio()
        if ratio > best:
            best, place = ratio, start
        if time.monotonic() > deadline:
            break
    return place + 1, place + size


def _numbered(text: str, first: int, last: int) -> str:
    lines = text.splitlines()
    first, last = max(1, first), min(len(lines), last, first + MOST_SHOWN)
    return "\n".join(f"{n:>5}  {lines[n - 1]}" for n in range(first, last + 1))


def _lines_of(text: str, old: str) -> list[int]:
    found, at = [], text.find(old)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + len(old))
    return found


def _squeezed(text: str) -> str:
    return "".join(text.split())


PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "path": {"type": "string", "description": "Path relative to your work folder."},
    "old": {"type": "string", "description": "The text to replace, exactly as in the file."},
    "new": {"type": "string", "description": "The new text."},
    "all": {"type": "boolean", "description": "Replace every occurrence, not just the only one."},
}
SCHEMA = schema(["path", "old", "new"], **PROPERTIES)
TOOL = Tool("edit", SCHEMA, edit, shown="path", changes=True)
