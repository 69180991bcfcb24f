"""Find the files of the work folder that the model has seen, from the messages of its conversation.

A file tool refuses to change a file that the model has not seen. After a resume or an `undo` the
conversation differs, so these files are determined again.
"""

from __future__ import annotations

import json
from contextlib import suppress

from cuagent.agent.run import Run
from cuagent.agent.tools.files import confined, mark_seen, text_if_there
from cuagent.agent.tools.tool import ToolError
from cuagent.message import ToolCall

WRITERS = ("write", "edit", "multi_edit")


def recall_seen(run: Run) -> None:
    """Mark the files that the conversation's tool calls have read or written as seen."""
    calls = {call.id: call for message in run.messages for call in message.tool_calls}
    for message in run.messages:
        call = calls.get(message.tool_call_id or "")
        if call is None or message.is_error or call.name not in ("read", *WRITERS):
            continue
        with suppress(ToolError):  # the file may no longer be text
            name = confined(run, str(message.data.get("path") or _path_of(call)))
            text = text_if_there(run, name)
            if text is not None:
                mark_seen(run, name, text)


def _path_of(call: ToolCall) -> str:
    """Return the `path` argument of a successful tool call; "" without one."""
    try:
        return str(json.loads(call.arguments)["path"])
    except (ValueError, TypeError, KeyError):
        return ""
