"""Tool `multi_edit`: make several replacements in one or several files, either all or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.agent.tools.edit import SCHEMA, Change, changed
from cuagent.agent.tools.files import confined, require_seen, save, text_of
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema


def multi_edit(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run, edits = context.run, arguments["edits"]
    if not edits:
        raise ToolError("edits is empty")
    texts: dict[str, str] = {}
    changes: list[Change] = []
    for number, given in enumerate(edits, 1):
        try:
            name = confined(run, given["path"])
            if name not in texts:
                texts[name] = text_of(run, name)
                require_seen(run, name, texts[name])
            changes.append(changed(name, texts[name], given))
        except ToolError as error:
            raise ToolError(f"edit {number}: {error}\n(no file was changed)") from error
        texts[name] = changes[-1].text
    _save_all(context, texts)
    names = sorted(texts)
    pieces = [f"{change.title}:\n{change.region}" for change in changes]
    return ToolResult("\n".join(pieces), {"paths": names, "count": len(changes)})


def _save_all(context: Context, texts: Mapping[str, str]) -> None:
    """Write each text to the file that is its key. If one cannot be written, restore the others."""
    run = context.run
    before = {name: text_of(run, name) for name in texts}
    done: list[str] = []
    try:
        for name, text in texts.items():
            save(run, name, text)
            done.append(name)
    except ToolError:
        for name in done:
            save(run, name, before[name])
        raise


TOOL = Tool(
    "multi_edit",
    schema(
        ["edits"],
        edits={"type": "array", "description": "The edits, in order.", "items": SCHEMA},
    ),
    multi_edit,
    changes=True,
)
