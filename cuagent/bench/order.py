"""Define the order for one problem (the input of its process), and the settings that all problems
share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

DEFERRED = "deferred"
"""Status of a problem that is postponed; a record with this status is not written to the
results."""

WAITING_FOR_MEMORY = "waiting for GPU memory"
"""Phase of a problem that waits until its GPU has enough free memory."""


class Rules(StrEnum):
    """Rule set for the operators that a candidate may call."""

    PRACTICAL = "practical"
    """All operators; the module must only be right and faster."""
    KERNELS_ONLY = "kernels-only"
    """Only products (cuBLAS), convolutions (cuDNN) and operators that compute nothing; all else
    must be kernels."""


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark. Each can change results, so all are part of the key that identifies
    a result."""

    model: str = "expert"
    rules: Rules = Rules.PRACTICAL
    device: str = "cpu"
    precision: str = "match"
    isolation: str = "auto"
    max_steps: int = 100
    max_cost: float | None = 5.0
    """Limit of the model's cost for each problem in US dollars; None: no limit."""
    max_time_s: float = 900.0
    """Wall time in seconds after which no step of a problem begins. It includes certificates and
    opening, but not the time in which the problem waits for GPU memory."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rules": str(self.rules)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> BenchSettings:
        return BenchSettings(**(data | {"rules": Rules(data["rules"])}))


@dataclass(frozen=True)
class Order:
    """One problem with all data that its process needs."""

    problem: str
    path: str
    group: str
    title: str
    settings: BenchSettings
    key: str
    """Digest of all that the result depends on (`results.key_of`)."""
    runs: str
    """Folder for the logs of the agent's runs."""
    gpu: str | None = None
    """Value of CUDA_VISIBLE_DEVICES for the process; None for a CPU, or for the GPU that the
    process already has."""
    cores: tuple[int, ...] = ()
    """Indices of the CPU cores that the process may use; empty means all."""
    endpoints: dict[str, Any] | None = None
    """Model servers from the user's configuration, by name; None if there are none."""
    prices: dict[str, Any] | None = None
    may_defer: bool = False
    """True to postpone a problem that needs most of its GPU's memory: it ends with the status
    `DEFERRED`."""
    sizes_only: bool = False
    """True to find only the memory that the problem needs (`memory.Size`)."""
    size: dict[str, Any] | None = None
    """Fields of the problem's `memory.Size`; None if it is not known yet."""
    alone: bool = False
    """True if no other problem uses the GPU at the same time."""
    older_keys: tuple[str, ...] = ()
    """Keys of this problem's results by other versions of cuagent that also count."""

    def to_json(self) -> dict[str, Any]:
        lists = {"cores": list(self.cores), "older_keys": list(self.older_keys)}
        return asdict(self) | {"settings": self.settings.to_json()} | lists

    @staticmethod
    def from_json(data: dict[str, Any]) -> Order:
        tuples = {name: tuple(data[name]) for name in ("cores", "older_keys")}
        return Order(**(data | {"settings": BenchSettings.from_json(data["settings"])} | tuples))
