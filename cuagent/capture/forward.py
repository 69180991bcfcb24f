"""Write the class of a captured task: a function of tensors around the user's module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cuagent.capture.encode import reference

if TYPE_CHECKING:
    from cuagent.capture.calls import Call
    from cuagent.capture.recorder import Shape, Snapshot

PLACES = re.compile("\x03(\\d+)\x04")


def model_text(snapshot: Snapshot, shape: Shape) -> str:
    """Return the text of the task's class Model: a subclass of the user's class, built from the
    table of `Structure`."""
    lines = [
        f"class Model({reference(snapshot.reference)}):",
        "    def __init__(self):",
        "        nn.Module.__init__(self)",
        "        _build(self, _TREE)",
    ]
    call = shape.call
    if call.is_plain and shape.autocast is None and shape.output_is_plain:
        return "\n".join(lines) + "\n"
    lines += ["", f"    def forward({', '.join(['self', *call.names])}):"]
    return "\n".join([*lines, *(f"        {line}" for line in _body(shape))]) + "\n"


def _body(shape: Shape) -> list[str]:
    """Return the lines of the forward of the task's class Model.

    It returns the result of the user's module, or the new tensors in it and in its arguments.
    """
    call = shape.call
    texts = [*call.positional, *call.named.values()]
    values = shape.outcome.values if shape.outcome is not None else None
    copied = shape.outcome.in_place if shape.outcome is not None else []
    lines = [f"{call.names[number]} = {call.names[number]}.clone()" for number in copied]
    for number, text in enumerate(texts):
        name = f"argument_{number}"
        if any(re.search(rf"\b{name}\b", value) for value in values or ()):
            lines.append(f"{name} = {_placed(text, call)}")
            texts[number] = name
    count = len(call.positional)
    named = [f"{name}={text}" for name, text in zip(call.named, texts[count:], strict=True)]
    result = f"super().forward({_placed(', '.join([*texts[:count], *named]), call)})"
    if values is not None:
        lines.append(f"result = {result}")
        result = ", ".join(values)
    elif not shape.output_is_plain:
        result = f"_plain({result})"
    lines.append(f"return {result}")
    if shape.autocast is None:
        return lines
    device = shape.inputs[0].device if shape.inputs else "cpu"
    return [
        f'with torch.autocast("{device}", torch.{shape.autocast}):',
        *(f"    {line}" for line in lines),
    ]


def _placed(text: str, call: Call) -> str:
    return PLACES.sub(lambda match: call.names[int(match[1])], text)
