"""Write metrics for TensorBoard next to metrics.jsonl, if the package tensorboard is installed.

Only scalars are written. metrics.jsonl remains the complete record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_writers: dict[Path, Any] = {}


def open_writer(folder: Path, step: int) -> None:
    """Open the TensorBoard writer of a folder, in `folder/tensorboard`.

    TensorBoard then hides values that an earlier process wrote for `step` and later steps.
    """
    if find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    if folder in _writers:
        _writers.pop(folder).close()
    _writers[folder] = SummaryWriter(folder / "tensorboard", purge_step=step)


def write_scalars(folder: Path, stage: str, step: int, metrics: Mapping[str, float]) -> None:
    """Append the finite metrics of one step to the folder's TensorBoard log; do nothing if no
    writer is open for it."""
    writer = _writers.get(folder)
    if writer is None:
        return
    for name, value in metrics.items():
        if math.isfinite(value):
            writer.add_scalar(f"{stage}/{name}", value, step)
    writer.flush()
