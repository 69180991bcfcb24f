"""The order for the process of one problem, and the settings that all problems share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

DEFERRED = "deferred"
"""Status of a problem that is left for later; such a record is not kept."""


class Rules(StrEnum):
    """Operators that a candidate may call."""

    PRACTICAL = "practical"
    """All: what counts is that the module is right and faster."""
    KERNELS_ONLY = "kernels-only"
    """No torch operator computes, but products (cuBLAS) and convolutions (cuDNN)."""


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark. Each changes results, so each is part of a result's key."""

    model: str = "expert"
    rules: Rules = Rules.PRACTICAL
    device: str = "cpu"
    precision: str = "match"
    isolation: str = "auto"
    max_steps: int = 100
    max_cost: float | None = 5.0
    """US dollars for each problem."""
    max_time_s: float = 900.0
    """Wall time for each problem, certificates not included."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rules": str(self.rules)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> BenchSettings:
        return BenchSettings(**(data | {"rules": Rules(data["rules"])}))


@dataclass(frozen=True)
class Order:
    """One problem for one process."""

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
    """The user's own servers of models, from the configuration."""
    prices: dict[str, Any] | None = None
    may_defer: bool = False
    """True if a problem that needs most of its GPU's memory ends with the status `DEFERRED`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"settings": self.settings.to_json(), "cores": list(self.cores)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Order:
        settings = BenchSettings.from_json(data["settings"])
        return Order(**(data | {"settings": settings, "cores": tuple(data["cores"])}))
