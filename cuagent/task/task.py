"""The Task: a frozen description, with a content hash, of the module to make faster.

It only describes. `cuagent.task.reference` imports the user's module, builds the model and draws
inputs. This module does not import torch.
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
    """Error: the task cannot be used as given. The message is one line: the fault, its place, the
    remedy."""


class Precision(StrEnum):
    """Precision of the products in the task's arms: the reference's own, or a coarser one that is
    permitted, or IEEE fp32 for all."""

    MATCH = "match"
    """The reference's own precision: its dtypes, and torch's settings in the user's process."""
    FP32 = "fp32"
    """IEEE fp32 products in the reference, in all baselines and in the candidate."""
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


CONTRACT = "2"
"""Version of the meaning of `match`. In version 1 it meant IEEE fp32 everywhere, which is now
`fp32`."""


def recorded_precision(data: Mapping[str, Any]) -> Precision:
    """Return the precision of a task's record, under its present name.

    In records of old versions `match` meant what is now `fp32`.
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
    """Text of `--inputs` as the user gave it."""
    init: str | None = None
    """Text of `--init` as the user gave it."""
    device: Device = Device.CPU
    precision: Precision = Precision.MATCH
    imported: str = ""
    """sha256 over the user's other files that the file imports, at the time when the task was
    loaded."""
    settings: str = ""
    """`CONTRACT` and those environment variables that change torch's settings; "" in records of old
    versions (`recorded_precision`)."""
    step: str = ""
    """JSON of `cuagent.task.step.Step` if the task is a training step of the user's module, else
    ""."""

    @property
    def name(self) -> str:
        stem = self.path.parent.name if self.path.name == "task.py" else self.path.stem
        return stem if self.entry == "Model" else f"{stem}.{self.entry}"

    @property
    def digest(self) -> str:
        """sha256 over all fields that change the right answer or the device.

        The source determines the settings that the file makes. `fp32` has the digest that `match`
        had in version 1, when it meant the same.
        """
        same = self.precision is Precision.FP32 and self.settings in ("", CONTRACT)
        precision = Precision.MATCH if same else self.precision
        parts = [self.source, self.entry, self.inputs, self.init, self.device, precision]
        parts += [self.imported] if self.imported else []
        parts += [f"settings {self.settings}"] if self.settings and not same else []
        parts += [f"step {self.step}"] if self.step else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
