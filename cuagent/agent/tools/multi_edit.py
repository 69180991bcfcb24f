"""multi_edit: several replacements in one or several files, all or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuagent.agent.tools.edit import SCHEMA, Change, changed
from cuagent.agent.tools.files import confined, require_seen, save, shown, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema


def multi_edit(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, edits = context.run, arguments["edits"]
    if not edits:
        raise ToolError("edits is empty")
    texts: dict[Path, str] = {}
    changes: list[Change] = []
    for number, given in enumerate(edits, 1):
        try:
            path = confined(run, given["path"])
            name = shown(run, path)
            if path not in texts:
                texts[path] = text_of(path, name)
                require_seen(run, path, name, texts[path])
            changes.append(changed(name, texts[path], given))
        except ToolError as error:
            raise ToolError(f"edit {number}: {error}\n(no file was changed)") from error
        texts[path] = changes[-1].text
    _save_all(context, texts)
    names = sorted(shown(run, path) for path in texts)
    pieces = [f"{change.title}:\n{change.region}" for change in changes]
    return ToolResult("\n".join(pieces), {"paths": names, "count": len(changes)})


def _save_all(context: Context, texts: Mapping[Path, str]) -> None:
    """Write every file, or put back those that were written before one failed."""
    run = context.run
    before = {path: text_of(path, shown(run, path)) for path in texts}
    done: list[Path] = []
    try:
        for path, text in texts.items():
            save(run, path, text, shown(run, path))
            done.append(path)
    except ToolError:
        for path in done:
            save(run, path, before[path], shown(run, path))
        raise


TOOL = Tool(
    "multi_edit",
    schema(
        ["edits"],
        edits={"type": "array", "description": "The edits, in their order.", "items": SCHEMA},
    ),
    multi_edit,
    changes=True,
)
