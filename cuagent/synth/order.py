"""Define the order: the request to the process that examines one candidate task."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ORDER = "order.json"
AGAIN = "again"
"""Key of an answer which asks to examine the candidate again, because the device's memory was in
use."""
REUSABLE = "reusable"
"""Key of an answer: True if the process can examine another candidate."""


@dataclass(frozen=True)
class Order:
    """Request to the process that examines one candidate task: the code, its labels and the
    limits."""

    code: str
    labels: tuple[str, ...]
    dtype: str
    device: str
    window_s: tuple[float, float]
    target_s: float
    memory: int
    """Limit in bytes on the inputs and the results of all operators of one call together."""
    compile: bool = True
    exact_labels: bool = True
    """True if the labels must name all operators that run; False if some may be missing."""
    solve: bool = True
    """True to search a batch size whose time is in the window; False to keep the code's own
    size."""
    alone: bool = False
    """True to reserve all memory of a shared GPU for this candidate."""
    lock: str = ""
    """Path of the lock file of a GPU that several candidates share; "" if the device is not
    shared."""

    def write(self, folder: Path) -> None:
        (folder / ORDER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Order:
        data = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        return Order(
            **data | {"labels": tuple(data["labels"]), "window_s": tuple(data["window_s"])}
        )
