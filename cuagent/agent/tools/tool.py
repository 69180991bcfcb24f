"""Define tools, and execute their calls so that no error in a tool ends the loop.

A tool is a name, a JSON schema, a Markdown file next to its code, and a function. A mistake of the
model (malformed arguments, a missing file) becomes an error result that says what to do.
"""

from __future__ import annotations

import importlib.resources
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from cuagent.agent.attended import Interrupted
from cuagent.agent.run import JudgeLost, Run
from cuagent.events import Emit
from cuagent.message import ToolCall
from cuagent.models.model import ToolSpec
from cuagent.record import RecordError

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
LONGEST_SUMMARY = 1000
"""Largest number of characters of the line that summarizes a tool call for the user."""


class ToolError(Exception):
    """Raised for a call that cannot be executed. Its text states the cause and a remedy."""


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool call: `text` for the model; `data` for the log, the views and the expert."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False


@dataclass(frozen=True)
class Context:
    """Environment of one tool call: the run, the call's id, and the sink for events."""

    run: Run
    call_id: str
    emit: Emit


@dataclass(frozen=True)
class Tool:
    """A tool that the model can call.

    `shown` names the argument that summarizes a call for the user; "" for no summary.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[[Context, Mapping[str, Any]], ToolResult]
    shown: str = ""
    changes: bool = False
    """True if the tool may change files of the work folder."""

    @property
    def spec(self) -> ToolSpec:
        text = importlib.resources.files(__package__).joinpath(f"{self.name}.md")
        return ToolSpec(self.name, text.read_text(encoding="utf-8").strip(), self.schema)

    def summarize(self, raw: str) -> str:
        """Return one line that summarizes a call for the user; `raw` are the call's arguments as
        JSON.
        """
        try:
            value = json.loads(raw)[self.shown] if self.shown else ""
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""
        lines = str(value).strip().splitlines() or [""]
        more = " ..." if len(lines) > 1 or len(lines[0]) > LONGEST_SUMMARY else ""
        return lines[0][:LONGEST_SUMMARY] + more


def schema(required: Sequence[str] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def execute(
    call: ToolCall,
    tool: Tool | None,
    tools: Sequence[Tool],
    context: Context,
    *,
    cut_off: bool = False,
) -> ToolResult:
    """Execute one tool call. Every error except four becomes an error result.

    KeyboardInterrupt, Interrupted, JudgeLost and RecordError pass through. `tool` is None if
    `tools` has no tool of that name. `cut_off` is True if the length limit ended the model's reply.
    """
    try:
        if tool is None:
            raise ToolError(_unknown(call.name, [t.name for t in tools]))
        return tool.function(context, parse(call.arguments, tool.schema, cut_off=cut_off))
    except ToolError as error:
        return ToolResult(f"Error: {error}", is_error=True)
    except (Interrupted, JudgeLost, RecordError):
        raise
    except Exception as error:  # noqa: BLE001 - the tool boundary
        trace = traceback.format_exc()
        context.run.log.write("notice", level="error", text=trace, tool=call.name)
        return ToolResult(
            f"Error: {call.name} failed internally ({type(error).__name__}: {str(error)[:300]}). "
            "This is a bug in the tool, not in your code; try another way.",
            {"internal": type(error).__name__},
            is_error=True,
        )


def parse(raw: str, schema: Mapping[str, Any], *, cut_off: bool = False) -> dict[str, Any]:
    """Return the arguments of a call, checked against the tool's schema. Raises ToolError.

    `raw` is JSON. `cut_off` is True if the length limit ended the model's reply.
    """
    try:
        arguments = json.loads(raw or "{}", strict=False)
    except (ValueError, RecursionError) as error:
        why = (
            "your reply was cut off at its length limit; write shorter pieces" if cut_off else error
        )
        raise ToolError(f"the arguments are not valid JSON: {why}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be a JSON object; {_expected(schema)}")
    return _object(arguments, schema)


def _object(arguments: Mapping[str, Any], schema: Mapping[str, Any], where: str = "") -> Any:
    """Check a JSON object against its schema; return it without its nulls, which mean "omitted".

    `where` is the prefix of argument names in messages. Raises ToolError.
    """
    properties = schema["properties"]
    for name in arguments.keys() - properties.keys():
        near = get_close_matches(name, properties, 1)
        hint = f"did you mean {near[0]}?" if near else _expected(schema)
        raise ToolError(f"no argument {where + name[:64]!r}; {hint}")
    given = {key: value for key, value in arguments.items() if value is not None}
    for name in schema["required"]:
        if name not in given:
            raise ToolError(f"argument {where + name!r} is missing; {_expected(schema)}")
    return {name: _checked(where + name, value, properties[name]) for name, value in given.items()}


def _checked(name: str, value: Any, wanted: Mapping[str, Any]) -> Any:
    kind = wanted["type"]
    fits = isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        found = type(value).__name__
        raise ToolError(f"argument {name!r} must be of type {kind}, not {found}")
    if "enum" in wanted and value not in wanted["enum"]:
        raise ToolError(f"argument {name!r} must be one of {', '.join(wanted['enum'])}")
    if "minimum" in wanted and not value >= wanted["minimum"]:
        raise ToolError(f"argument {name!r} must be at least {wanted['minimum']}")
    if kind == "array":
        items = wanted["items"]
        return [_checked(f"{name}[{n}]", item, items) for n, item in enumerate(value)]
    return _object(value, wanted, f"{name}.") if kind == "object" else value


def _expected(schema: Mapping[str, Any]) -> str:
    names = [
        name if name in schema["required"] else f"{name} (optional)"
        for name in schema["properties"]
    ]
    return f"arguments: {', '.join(names)}" if names else "it takes no arguments"


def _unknown(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no tool {name[:64]!r}; {hint}the tools are {', '.join(names)}"
