"""The Task: the module to make faster, frozen and with a content hash.

A Task only describes. `cuagent.task.reference` opens it: imports the user's module, builds the
model, draws inputs. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class TaskError(Exception):
    """The task cannot be used as given. One line: the fault, its place and the remedy."""


class Precision(StrEnum):
    """Arithmetic that the task admits instead of the reference's own."""

    MATCH = "match"
    """The reference's own arithmetic: its dtypes, fp32 products in fp32."""
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Task:
    """A reference module, its constructor arguments and its inputs.

    `inputs` and `init` are None for a file in the KernelBench form, which defines both
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
    """sha256 over the neighbouring files that the file imports, when the task was loaded."""

    @property
    def name(self) -> str:
        return self.path.stem if self.entry == "Model" else f"{self.path.stem}.{self.entry}"

    @property
    def digest(self) -> str:
        """sha256 over all fields that change the right answer or the device."""
        parts = [self.source, self.entry, self.inputs, self.init, self.device, self.precision]
        parts += [self.imported] if self.imported else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
