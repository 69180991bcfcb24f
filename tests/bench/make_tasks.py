"""Write small tasks in KernelBench's form for the tests of the bench."""

from __future__ import annotations

from pathlib import Path

TASK = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init_inputs}]
"""


def task_text(
    forward: str,
    inputs: str = "torch.randn(64, 32)",
    *,
    arguments: str = "x",
    init: str = "pass",
    parameters: str = "",
    init_inputs: str = "",
) -> str:
    """Return the text of a task; lines of `init` and `forward` are separated by semicolons."""

    def body(text: str) -> str:
        return "\n        ".join(part.strip() for part in text.split(";"))

    return TASK.format(
        forward=body(forward),
        inputs=inputs,
        arguments=arguments,
        init=body(init),
        parameters=parameters,
        init_inputs=init_inputs,
    )


def write_task(path: Path, forward: str, inputs: str = "torch.randn(64, 32)", **more: str) -> Path:
    """Write a task file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(task_text(forward, inputs, **more))
    return path
