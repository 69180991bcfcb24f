"""Small tasks for kinds of draws that expose one class of bugs each, with right and wrong bodies of
forward."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Regime:
    """A task with the bodies of a reference, an honest forward of another form, and forwards with
    one bug each."""

    inputs: str
    reference: str
    honest: str
    wrong: dict[str, str]
    """Wrong forwards by the name of their bug."""
    construct: str = "pass"
    arguments: str = "x"

    def module(self, entry: str, forward: str) -> str:
        """Return the source text of a module called `entry` with `forward` as the body of its
        forward method."""
        return (
            "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"
            f"class {entry}(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            f"{textwrap.indent(textwrap.dedent(self.construct).strip(), ' ' * 8)}\n\n"
            f"    def forward(self, {self.arguments}):\n"
            f"{textwrap.indent(textwrap.dedent(forward).strip(), ' ' * 8)}\n"
        )

    @property
    def task(self) -> str:
        """Source text of the task file."""
        inputs = f"\n\ndef get_inputs():\n    return [{self.inputs}]\n"
        return (
            self.module("Model", self.reference)
            + inputs
            + "\n\ndef get_init_inputs():\n    return []\n"
        )
