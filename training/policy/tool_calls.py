"""Parse the tool calls in a policy's text, in the four forms that model families write.

    Hermes (Qwen2.5, Qwen3)     <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    XML (Qwen3-Coder)           <tool_call><function=NAME><parameter=KEY>...</parameter>...
    bare JSON (Llama 3)         {"name": ..., "parameters": {...}} as the whole answer
    DeepSeek (V3.1)             <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    DeepSeek (V3)               the same with function<｜tool▁sep｜>NAME and a block of JSON

The form to parse is that of the model's own chat template (`form_of`). A malformed call becomes a
call of the tool `unparsable` with the text as arguments, and the agent's loop answers with an
error.
Not covered: other forms, such as Mistral's; such templates are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from cuagent.message import ToolCall
from cuagent.models.model import ToolSpec

UNPARSABLE = "unparsable"
"""Tool name of a call that cannot be parsed. No tool has this name, so the loop answers with an
error."""
BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
XML_BLOCK = re.compile(r"<tool_call>\s*|(?=<function=)")
FUNCTION = re.compile(r"<function=([^>\n]*)>(.*?)(?:</function>|\Z)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
JSON_START = re.compile(r'(?:^|<\|python_tag\|>)\s*(?=\{\s*"(?:name|type)")', re.MULTILINE)
CALL_OF_DEEPSEEK = re.compile(
    "<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|<｜tool▁calls▁end｜>|\\Z)", re.DOTALL
)
FENCED = re.compile(r"\A(?P<name>[^\n]*)\n```json\n(?P<raw>.*?)\n?```\s*\Z", re.DOTALL)
SEPARATORS = " \t\r\n;,"
PROBE = ToolCall("probe", "probe_tool", '{"probe_key": "probe value"}')
"""Example call, rendered with a chat template to find out the template's form of tool calls."""


class Form(StrEnum):
    """Text form in which a model family writes tool calls."""

    HERMES = "Hermes"
    XML = "XML"
    JSON = "bare JSON"
    DEEPSEEK = "DeepSeek"


def form_of(rendered: str) -> Form | None:
    """Return the form of tool calls in `rendered`, the call `PROBE` as a chat template rendered it;
    None if it is unknown."""
    if PROBE.name not in rendered:
        return None
    if "<｜tool▁sep｜>" in rendered:
        read = parse_calls(rendered, Form.DEEPSEEK)[1]
        return Form.DEEPSEEK if [call.name for call in read] == [PROBE.name] else None
    if f"<function={PROBE.name}>" in rendered:
        return Form.XML
    found = [call for form in (Form.HERMES, Form.JSON) for call in parse_calls(rendered, form)[1]]
    if not found or found[0].name != PROBE.name:
        return None
    return Form.HERMES if "<tool_call>" in rendered else Form.JSON


def parse_calls(
    text: str, form: Form, tools: Sequence[ToolSpec] = ()
) -> tuple[str, tuple[ToolCall, ...]]:
    """Return (text before the first tool call, tool calls with the ids c1, c2, ...).

    XML parameters are text; the schemas of `tools` give their types.
    """
    if form is Form.HERMES:
        before, calls = text.partition("<tool_call>")[0], _hermes(text)
    elif form is Form.XML:
        before, calls = XML_BLOCK.split(text, maxsplit=1)[0], _xml(text, tools)
    elif form is Form.DEEPSEEK:
        before, calls = text.partition("<｜tool▁calls▁begin｜>")[0], _deepseek(text)
    else:
        start = JSON_START.search(text)
        before = text if start is None else text[: start.start()]
        calls = iter(()) if start is None else _json(text[start.end() :])
    return before, tuple(
        ToolCall(f"c{n}", name, raw) for n, (name, raw) in enumerate(calls, start=1)
    )


def _hermes(text: str) -> Iterator[tuple[str, str]]:
    for block in BLOCK.findall(text):
        found = _decode(block, 0)
        whole = found is not None and not block[found[1] :].strip()
        yield found[0] if found and whole else (UNPARSABLE, block.strip())


def _deepseek(text: str) -> Iterator[tuple[str, str]]:
    for block in CALL_OF_DEEPSEEK.findall(text):
        first, _, rest = block.partition("<｜tool▁sep｜>")
        fenced = FENCED.match(rest)
        name, raw = (fenced["name"], fenced["raw"]) if fenced else (first, rest)
        try:
            json.loads(raw, strict=False)
        except (ValueError, RecursionError):
            yield UNPARSABLE, block.strip()
            continue
        yield name.strip(), raw.strip()


def _json(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, arguments) of JSON calls separated by white space, commas or semicolons."""
    at = 0
    while at < len(text) and text[at] == "{":
        found = _decode(text, at)
        if found is None:
            yield UNPARSABLE, text[at:].strip()
            return
        yield found[0]
        at = found[1]
        while at < len(text) and text[at] in SEPARATORS:
            at += 1


def _decode(text: str, at: int) -> tuple[tuple[str, str], int] | None:
    """Decode one JSON call in `text` at index `at`; return ((name, arguments), end index), or None
    if it is malformed.

    The arguments are returned byte for byte as written, where possible.
    """
    reader = json.JSONDecoder(strict=False)
    try:
        begin = at + len(text[at:]) - len(text[at:].lstrip())
        whole, end = reader.raw_decode(text, begin)
        key = "arguments" if "arguments" in whole else "parameters"
        name, arguments = whole["name"], whole[key]
        start = re.compile(rf'"{key}"\s*:\s*').search(text, begin)
        assert start is not None
        value, stop = reader.raw_decode(text, start.end())
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    raw = text[start.end() : stop] if value == arguments else json.dumps(arguments)
    return (name, raw), end


def _xml(text: str, tools: Sequence[ToolSpec]) -> Iterator[tuple[str, str]]:
    schemas = {tool.name: tool.schema.get("properties", {}) for tool in tools}
    found = list(FUNCTION.finditer(text))
    if not found and "<tool_call>" in text:
        yield UNPARSABLE, text.partition("<tool_call>")[2].strip()
    for match in found:
        name, body = match.group(1).strip(), match.group(2)
        if body.count("<parameter=") != len(PARAMETER.findall(body)):  # one was cut off
            yield UNPARSABLE, match.group(0).strip()
            continue
        types = schemas.get(name, {})
        values = {
            key: _typed(value, types.get(key.strip(), {})) for key, value in PARAMETER.findall(body)
        }
        yield name, json.dumps(values, ensure_ascii=False)


def _typed(value: str, schema: Any) -> Any:
    """Convert the text of an XML parameter to the type that its schema names; return the text if
    that fails."""
    if schema.get("type", "string") == "string":
        return value
    try:
        return json.loads(value.strip().lower() if schema["type"] == "boolean" else value)
    except (ValueError, RecursionError):
        return value
