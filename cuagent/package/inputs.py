"""Write a task's `--inputs` and `--init` options as Python code that works without cuagent.

The written functions draw the same values as `Reference.inputs` does from the same seed.
"""

from __future__ import annotations

from typing import Any

from cuagent.package.names import quoted_name
from cuagent.task.spec import UNBOUNDED_INTEGERS, TensorSpec, parse_init, parse_inputs
from cuagent.task.task import Task

_NARROW = ("float16", "bfloat16")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def inputs_text(task: Task) -> str | None:
    """Return Python text with `get_inputs` for `--inputs` and `get_init_inputs` for `--init`.

    None if the command line gave neither option.
    """
    parts = []
    if task.inputs is not None:
        drawn = "".join(f"        {_value(entry)},\n" for entry in parse_inputs(task.inputs))
        parts.append(f"def get_inputs():\n    return [\n{drawn}    ]\n")
    if task.init is not None:
        args, named = parse_init(task.init)
        parts.append(f"def get_init_inputs():\n    return {[list(args), named]!r}\n")
    if not parts:
        return None
    title = f'"""Inputs and constructor arguments of {task.entry} in {quoted_name(task.path)}."""'
    return "\n\n".join([f"{title}\n\nimport torch\n", *parts])


def _value(entry: Any) -> str:
    match entry:
        case TensorSpec():
            return _draw(entry)
        case list():
            return f"[{', '.join(map(_value, entry))}]"
        case tuple():
            return f"({''.join(f'{_value(item)}, ' for item in entry)})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_value(item)}' for key, item in entry.items())}}}"
    return repr(entry)


def _draw(spec: TensorSpec) -> str:
    dtype, shape = spec.dtype, spec.shape
    if dtype == "bool":
        return f"torch.rand({shape}) < 0.5"
    if dtype in _INTEGERS:
        below = int(spec.below or UNBOUNDED_INTEGERS)
        return f"torch.randint({below}, {shape}, dtype=torch.{dtype})"
    draw = "randn" if spec.below is None else "rand"
    wide = "float32" if dtype in _NARROW else dtype
    text = f"torch.{draw}({shape}, dtype=torch.{wide})"
    if spec.below not in (None, 1):
        text += f" * {spec.below!r}"
    return f"({text}).to(torch.{dtype})" if wide != dtype else text
