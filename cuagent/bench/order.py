"""The order for the process of one problem, and the settings that all problems share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

DEFERRED = "deferred"
"""Status of a problem that is left for later; a record with it is not written to the results."""


class Rules(StrEnum):
    """Operators that a candidate may call."""

    PRACTICAL = "practical"
    """All operators: the module need only be right and faster."""
    KERNELS_ONLY = "kernels-only"
    """Only products (cuBLAS) and convolutions (cuDNN), and operators that compute nothing."""


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark. Each can change results, so all are part of a result's key."""

    model: str = "expert"
    rules: Rules = Rules.PRACTICAL
    device: str = "cpu"
    precision: str = "match"
    isolation: str = "auto"
    max_steps: int = 100
    max_cost: float | None = 5.0
    """Limit in US dollars for each problem; None for no limit."""
    max_time_s: float = 900.0
    """Limit of the wall time in seconds for each problem, without the certificates."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rules": str(self.rules)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> BenchSettings:
        return BenchSettings(**(data | {"rules": Rules(data["rules"])}))


@dataclass(frozen=True)
class Order:
    """One problem, with all that its process needs to know."""

    problem: str
    path: str
    group: str
    title: str
    settings: BenchSettings
    key: str
    runs: str
    """Folder for the logs of runs."""
    gpu: str | None = None
    """Value of CUDA_VISIBLE_DEVICES; None for a CPU, or for the GPU that the process already has.
    """
    cores: tuple[int, ...] = ()
    """Processors that the process may use; empty means all."""
    endpoints: dict[str, Any] | None = None
    """Model servers from the user's configuration; None if there are none."""
    prices: dict[str, Any] | None = None
    may_defer: bool = False
    """True if a problem that needs most of its GPU's memory ends with the status `DEFERRED`."""

    alone: bool = False
    """True if no other problem uses the GPU meanwhile."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"settings": self.settings.to_json(), "cores": list(self.cores)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Order:
        settings = BenchSettings.from_json(data["settings"])
        return Order(**(data | {"settings": settings, "cores": tuple(data["cores"])}))
