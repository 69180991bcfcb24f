"""torch's settings under which the arms of a task run, as its precision demands.

`match` means the settings of the user's own process: torch's defaults, and what the task's file
sets when it is imported. They are read in the process that imports the file (`read_settings`) and
applied in each process that runs an arm (`TorchSettings.apply`). `fp32` means IEEE fp32 in every
arm. The other precisions permit more to rungs and candidates; the baselines keep the task's own.

Not covered: settings that a forward changes for one call and restores (autocast), which the
reference does itself, and changes by the user's other files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cuagent.task.flags import ARITHMETIC, LEAVES, ON_CPU, read_flags, set_flags
from cuagent.task.task import Device, Precision

VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Environment variables that change torch's settings, or how its libraries follow them."""
UNITS = {"ieee": 2.0**-24, "none": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of the factors of an fp32 product, by torch's name of the precision."""
COARSE_ERROR = 1e-5
"""Relative error of a product that separates fp32 (below it) from TF32 and coarser factors
(above)."""
WORDS = {"matmul": "products", "conv": "convolutions", "rnn": "RNNs"}


@dataclass(frozen=True)
class TorchSettings:
    """torch's global settings in one process. The default values are torch's own."""

    float32_matmul_precision: str | None = "highest"
    """Old switch for the precision of matrix products; None if torch refuses to read it, because
    newer settings disagree with it."""
    cudnn_allow_tf32: bool | None = True
    matmul: str = "none"
    """Precision of the factors of fp32 matrix products on a GPU: `ieee` (or `none`) or `tf32`."""
    conv: str = "tf32"
    rnn: str = "tf32"
    cpu_matmul: str = "none"
    """Precision of the factors of fp32 matrix products on a CPU, where `bf16` is possible too."""
    cpu_conv: str = "none"
    cpu_rnn: str = "none"
    fp16_reduction: tuple[bool, ...] = (True, True)
    """True if half-precision products may round partial sums; a second item says the same for
    split-K."""
    bf16_reduction: tuple[bool, ...] = (True, True)
    fp16_accumulation: bool = False
    default_dtype: str = "float32"
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    deterministic: str = "off"
    """Mode of torch.use_deterministic_algorithms: `off`, `warn` or `error`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Names and values of those environment variables in `VARIABLES` that are set."""
    cpu_coarse: bool = False
    """True if this processor really rounds factors as `cpu_matmul`, `cpu_conv` and `cpu_rnn`
    permit. Most processors compute in fp32 in any case."""

    @property
    def flags(self) -> dict[str, Any]:
        """The settings in the form of `flags.set_flags`, without `environment` and `cpu_coarse`."""
        found = asdict(self)
        del found["environment"], found["cpu_coarse"]
        return found | {name: list(found[name]) for name in ("fp16_reduction", "bf16_reduction")}

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON data, for another process."""
        pairs = [list(pair) for pair in self.environment]
        return self.flags | {"environment": pairs, "cpu_coarse": self.cpu_coarse}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TorchSettings:
        """Return the settings that `to_json` wrote. Raises KeyError or TypeError for other data."""
        typed = {name: tuple(data[name]) for name in ("fp16_reduction", "bf16_reduction")}
        pairs = tuple((name, value) for name, value in data["environment"])
        return TorchSettings(**{**data, **typed, "environment": pairs})

    def apply(self) -> None:
        """Set torch's settings in this process, which must be one of cuagent's, never the
        user's."""
        set_flags(self.flags)

    def products(self, device: Device) -> dict[str, Any]:
        """Return those flags that change the results of products on `device`, by name."""
        cuda = device is Device.CUDA
        names = set(ARITHMETIC) - set(ON_CPU) if cuda else {*ON_CPU, "float32_matmul_precision"}
        return {name: value for name, value in self.flags.items() if name in names}

    def arithmetic(self, kind: str, device: Device) -> str:
        """Return the precision of the factors of an fp32 product: `ieee`, `tf32` or `bf16`.

        `kind` is the operation: `matmul`, `conv` or `rnn`.
        """
        value = str(getattr(self, kind if device is Device.CUDA else f"cpu_{kind}"))
        override = dict(self.environment).get("NVIDIA_TF32_OVERRIDE")
        if device is Device.CUDA and override in ("0", "1"):
            value = "tf32" if override == "1" else "ieee"
        if device is Device.CPU and not self.cpu_coarse:
            return "ieee"
        return "ieee" if value == "none" else value

    def unit(self, kind: str, device: Device) -> float:
        """Return the unit roundoff of the factors of an fp32 `matmul`, `conv` or `rnn`."""
        return UNITS[self.arithmetic(kind, device)]

    def with_ieee(self) -> TorchSettings:
        """Return a copy of these settings with IEEE fp32 products on all devices."""
        leaves: dict[str, Any] = dict.fromkeys(LEAVES, "ieee")
        return replace(self, float32_matmul_precision="highest", cudnn_allow_tf32=False, **leaves)

    def with_tf32(self) -> TorchSettings:
        """Return a copy of these settings with TF32 products on a GPU."""
        leaves: dict[str, Any] = dict.fromkeys(("matmul", "conv", "rnn"), "tf32")
        precision = "medium" if self.float32_matmul_precision == "medium" else "high"
        return replace(self, float32_matmul_precision=precision, cudnn_allow_tf32=True, **leaves)

    def line(self, device: Device) -> str:
        """Return those settings that affect `device`, as one line of text."""
        kinds: dict[str, list[str]] = {}
        for kind, words in WORDS.items():
            kinds.setdefault(self.arithmetic(kind, device), []).append(words)
        parts = [f"{_NAMES[how]} {_listed(words)}" for how, words in kinds.items()]
        if self.default_dtype != "float32":
            parts.append(f"default dtype {self.default_dtype}")
        parts += ["cudnn.benchmark on"] if self.cudnn_benchmark else []
        parts += ["cudnn.deterministic on"] if self.cudnn_deterministic else []
        if self.deterministic != "off":
            parts.append(f"deterministic algorithms ({self.deterministic})")
        if device is Device.CUDA:
            if not all(self.fp16_reduction + self.bf16_reduction):
                parts.append("no reduced-precision reductions")
            parts += ["fp16 accumulation"] if self.fp16_accumulation else []
        parts += [f"{name}={value}" for name, value in self.environment]
        return ", ".join(parts)


_NAMES = {"ieee": "fp32", "tf32": "TF32", "bf16": "bf16"}


def read_settings() -> TorchSettings:
    """Return torch's settings in this process. Call it after the task's file was imported."""
    found = read_flags() | {"environment": overrides()}
    asks = any(found[f"cpu_{kind}"] not in ("ieee", "none") for kind in WORDS)
    return TorchSettings.from_json(found | {"cpu_coarse": asks and _cpu_rounds_factors()})


def _cpu_rounds_factors() -> bool:
    """Return True if an fp32 matrix product on this CPU has an error of coarser factors than
    fp32."""
    import torch

    with torch.no_grad():
        generator = torch.Generator("cpu").manual_seed(0)
        a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float32, device="cpu")
        exact = a.double() @ b.double()
        return bool(((a @ b).double() - exact).norm() > COARSE_ERROR * exact.norm())


def overrides() -> list[tuple[str, str]]:
    """Return the names and values of those environment variables in `VARIABLES` that are set."""
    return [(name, os.environ[name]) for name in VARIABLES if name in os.environ]


def baseline_settings(own: TorchSettings, precision: Precision) -> TorchSettings:
    """Return the settings of the reference and of every baseline; `own` are the task's settings."""
    return own.with_ieee() if precision is Precision.FP32 else own


def arm_settings(
    own: TorchSettings, precision: Precision, options: Collection[str]
) -> TorchSettings:
    """Return the settings of a rung with the given options (`tf32`, `cudnn_benchmark`, ...).

    `own` are the task's settings.
    """
    base = baseline_settings(own, precision)
    if "cudnn_benchmark" in options:
        base = replace(base, cudnn_benchmark=True)
    if "tf32" in options:
        return base.with_tf32()
    return base.with_ieee() if "fp32" in options else base


def recorded_settings(own: TorchSettings | None, precision: Precision) -> TorchSettings:
    """Return a record's settings `own`; for None, the settings that its `precision` meant at that
    time.

    Records of old versions have None.
    """
    if own is not None:
        return own
    ieee = precision in (Precision.MATCH, Precision.FP32)
    return TorchSettings().with_ieee() if ieee else TorchSettings().with_tf32()


def candidate_settings(own: TorchSettings, precision: Precision) -> TorchSettings:
    """Return the settings of a candidate's process, with TF32 on if the task's precision permits
    it."""
    if precision in (Precision.MATCH, Precision.FP32):
        return baseline_settings(own, precision)
    return own.with_tf32()


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
