"""The Task: what is to be made faster, frozen and with a content hash.

A Task only describes. Opening it (importing the user's module, building the model, drawing
inputs) is `cuagent.task.reference`. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class TaskError(Exception):
    """The task cannot be used as given. One line: what, where, and what to do about it."""


class Precision(StrEnum):
    """What arithmetic the task admits in place of its own."""

    MATCH = "match"
    """As the reference: its dtypes, fp32 products in fp32."""
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Task:
    """A reference module, how it is constructed and what it is fed.

    `inputs` and `init` are None for a file in the KernelBench form, which says both itself
    (`get_inputs`, `get_init_inputs`).
    """

    path: Path
    entry: str
    """Name of the reference class."""
    source: str
    """Text of the file when the task was loaded."""
    inputs: str | None = None
    """`--inputs` as the user gave it."""
    init: str | None = None
    """`--init` as the user gave it."""
    device: Device = Device.CPU
    precision: Precision = Precision.MATCH
    imported: str = ""
    """sha256 over the files beside it that it imports, when it was loaded."""

    @property
    def name(self) -> str:
        return self.path.stem if self.entry == "Model" else f"{self.path.stem}.{self.entry}"

    @property
    def digest(self) -> str:
        """sha256 over everything that changes what the right answer is, or on what it runs."""
        parts = [self.source, self.entry, self.inputs, self.init, self.device, self.precision]
        parts += [self.imported] if self.imported else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
