"""The Task: the module to make faster, frozen and with a content hash.

A Task only describes. `cuagent.task.reference` opens it: imports the user's module, builds the
model, draws inputs. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class TaskError(Exception):
    """The task cannot be used as given. One line: the fault, its place and the remedy."""


class Precision(StrEnum):
    """Arithmetic that the task demands, or admits instead of the reference's own."""

    MATCH = "match"
    """The reference's own arithmetic: its dtypes, and torch's settings in the user's process."""
    FP32 = "fp32"
    """IEEE fp32 products in the reference, in all baselines and in the candidate."""
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


CONTRACT = "2"
"""Version of the meaning of `match`. In version 1 it was IEEE fp32 everywhere, now `fp32`."""


def recorded_precision(data: Mapping[str, Any]) -> Precision:
    """Return the precision of a recorded task by its present name.

    `match` in an earlier record is now `fp32`.
    """
    precision = Precision(data["precision"])
    earlier = "settings" not in data
    return Precision.FP32 if earlier and precision is Precision.MATCH else precision


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
    settings: str = ""
    """`CONTRACT` and the environment's variables that change torch's settings; empty in a record of
    an earlier version (`recorded_precision`)."""
    step: str = ""
    """JSON of `cuagent.task.step.Step` if the task is a training step of the user's module."""

    @property
    def name(self) -> str:
        stem = self.path.parent.name if self.path.name == "task.py" else self.path.stem
        return stem if self.entry == "Model" else f"{stem}.{self.entry}"

    @property
    def digest(self) -> str:
        """sha256 over all fields that change the right answer or the device.

        The source determines the settings that the file makes. `fp32` has the digest that `match`
        had when it meant the same.
        """
        same = self.precision is Precision.FP32 and self.settings in ("", CONTRACT)
        precision = Precision.MATCH if same else self.precision
        parts = [self.source, self.entry, self.inputs, self.init, self.device, precision]
        parts += [self.imported] if self.imported else []
        parts += [f"settings {self.settings}"] if self.settings and not same else []
        parts += [f"step {self.step}"] if self.step else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
