"""Generate the source text of a small task in KernelBench's form, for tests of the bench and of
synth."""

from __future__ import annotations

TASK = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
{before}

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
    before: str = "",
    parameters: str = "",
    init_inputs: str = "",
) -> str:
    """Return the source text of a task. Semicolons separate the statements in `init` and `forward`.

    `before`: lines of the module above the class.
    """

    def body(text: str) -> str:
        return "\n        ".join(part.strip() for part in text.split(";"))

    return TASK.format(
        forward=body(forward),
        inputs=inputs,
        arguments=arguments,
        init=body(init),
        before=before,
        parameters=parameters,
        init_inputs=init_inputs,
    )
