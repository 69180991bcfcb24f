"""The request to the process that examines one candidate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ORDER = "order.json"
AGAIN = "again"
"""Key of an answer that says that the device's memory was in use, so the candidate is examined
again."""


@dataclass(frozen=True)
class Order:
    """Request to the process that examines one candidate."""

    code: str
    labels: tuple[str, ...]
    dtype: str
    device: str
    window_s: tuple[float, float]
    target_s: float
    memory: int
    """Limit in bytes on all results of one call."""
    compile: bool = True
    exact_labels: bool = True
    """True if the labels must name all operators that run; False if some may be missing."""
    solve: bool = True
    """True to change the batch size until the time is in the window; False to keep it."""
    lock: str = ""
    """Lock file of a GPU that other candidates use too; "" if the device is not shared."""

    def write(self, folder: Path) -> None:
        (folder / ORDER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Order:
        data = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        return Order(
            **data | {"labels": tuple(data["labels"]), "window_s": tuple(data["window_s"])}
        )
