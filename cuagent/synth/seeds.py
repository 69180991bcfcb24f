"""Derive operator templates from the installed torch: signatures, shape rules and domains.

A `Seed` is a template of one call with typed placeholders (`templates.py`). The functions here make
seeds from the schemas of `torch.ops.aten` and from the constructors of `torch.nn`; handwritten
seeds are in `catalogue.py`. Shapes are never computed here: `draft.py` runs each call on meta
tensors.
Not covered: operators with several overloads that differ in meaning, and random ones.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from cuagent.worker.operators import names_in


class Domain(StrEnum):
    """Range of input values on which an operator returns finite results."""

    ANY = "any"
    POSITIVE = "positive"
    UNIT = "between 0 and 1"
    ABOVE_ONE = "above 1"


@dataclass(frozen=True)
class Seed:
    """Template of one operator call."""

    family: str
    form: str
    """Shape form of the main argument: one letter for each dimension, `...` for any number of
    leading ones."""
    text: str
    """Text of the whole call, or of a module's constructor (`nn.*`), with placeholders."""
    call: str = "$({x})"
    """Text of a module's call, in which `$` stands for the module; unused if `text` is a function
    call."""
    domain: Domain = Domain.ANY
    integers: bool = False
    """True if the operator's main argument is a tensor of integers."""

    @property
    def name(self) -> str:
        """Name of the operator, for instance `torch.cumsum`."""
        return self.text.partition("(")[0]


SKIPPED_POINTWISE = names_in(
    """
    bitwise_not isfinite isinf isnan isneginf isposinf logical_not signbit clone clip conj_physical
    positive angle digamma lgamma i0 deg2rad rad2deg nan_to_num clamp add sub div mul true_divide eq
    ne ge gt le lt bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
    logical_and logical_or logical_xor nextafter float_power heaviside igamma igammac ldexp max min
    pow xlogy clamp_max clamp_min where remainder fmod copysign
    """
)
"""Names of pointwise operators that are left out: useless for floating-point tensors, discontinuous
nearly everywhere, or listed in the catalogue in another form."""
REDUCTIONS = {
    "amax": "extremes", "amin": "extremes", "argmax": "extremes", "argmin": "extremes",
    "max": "extremes", "median": "extremes", "min": "extremes",
    "logsumexp": "reductions", "mean": "reductions", "nansum": "reductions",
    "prod": "reductions", "std": "reductions", "sum": "reductions", "var": "reductions",
}  # fmt: skip
"""Family of each reduction that is derived from torch's schemas."""
SCANS = {
    "cummax": "scans", "cummin": "scans", "cumprod": "scans", "cumsum": "scans",
    "logcumsumexp": "scans", "softmax": "softmax", "log_softmax": "softmax",
}  # fmt: skip
MODULE_FAMILIES = {
    "activation": "activations",
    "batchnorm": "normalisations",
    "conv": "convolutions",
    "instancenorm": "normalisations",
    "normalization": "normalisations",
    "padding": "views",
    "pixelshuffle": "views",
    "channelshuffle": "views",
    "pooling": "pooling",
}
"""Operator family of the modules in each file of `torch.nn.modules`; files that are not listed are
skipped."""
SKIPPED_MODULES = re.compile(
    "Lazy|Sync|Fractional|MaxUnpool|CrossMapLRN|LocalResponseNorm|RReLU|MultiheadAttention|Softmax"
    "|Softmin|Threshold"
)
PARAMETERS = {
    "num_features": "{c}",
    "num_channels": "{c}",
    "num_groups": "{groups}",
    "groups": "{groups}",
    "in_channels": "{c}",
    "out_channels": "{width}",
    "kernel_size": "{kernel}",
    "output_size": "{output}",
    "normalized_shape": "{d}",
    "padding": "{padding}",
    "value": "{number}",
    "norm_type": "2",
    "size": "{odd}",
    "upscale_factor": "2",
    "downscale_factor": "2",
}
"""Placeholder or value for each required parameter of a module's constructor."""
OPTIONS = {
    "conv": ("", ", padding={padding}", ", stride={stride}, padding={padding}", ", bias=False"),
    "conv transposed": ("", ", stride={stride}"),
    "instancenorm": (", affine=True",),
    "pooling": ("", ", stride={stride}"),
}
"""Variants of optional constructor arguments, by file of `torch.nn.modules`."""
SPATIAL = {"1": "n c l", "2": "n c h w", "3": "n c s h w"}


@cache
def from_torch() -> tuple[Seed, ...]:
    """Return the operator templates that can be derived from the installed torch."""
    return (*_pointwise(), *_along_a_dimension(), *_modules())


def _schemas() -> Iterator[tuple[str, Any]]:
    """Yield (name, overload) of torch's public operators that are not random and mutate nothing."""
    import torch

    for name in sorted(dir(torch)):
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or name.startswith("_") or name.endswith("_"):
            continue
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            random = torch.Tag.nondeterministic_seeded in operator.tags
            if not (random or operator._schema.is_mutable):
                yield name, operator


def _required(operator: Any) -> list[str]:
    return [
        str(argument.type)
        for argument in operator._schema.arguments
        if not argument.has_default_value()
    ]


def _pointwise() -> Iterator[Seed]:
    import torch

    for name, operator in _schemas():
        returns = [str(result.type) for result in operator._schema.returns]
        pointwise = torch.Tag.pointwise in operator.tags and returns == ["Tensor"]
        if not pointwise or name in SKIPPED_POINTWISE:
            continue
        required = _required(operator)
        if required == ["Tensor"]:
            domain = _domain(getattr(torch, name))
            if domain is not None:
                yield Seed("elementwise", "...", f"torch.{name}({{x}})", domain=domain)
        elif required == ["Tensor", "Tensor"]:
            yield Seed("elementwise", "...", f"torch.{name}({{x}}, {{like}})")


def _domain(function: Any) -> Domain | None:
    """Return the first domain on which all results of a function are finite; None if there is no
    such domain."""
    import torch

    uniform = torch.linspace(0.01, 0.99, 64)
    samples = {
        Domain.ANY: torch.linspace(-3.01, 3, 64),
        Domain.POSITIVE: uniform * 3,
        Domain.UNIT: uniform,
        Domain.ABOVE_ONE: uniform * 3 + 1,
    }
    for domain, sample in samples.items():
        if bool(function(sample).isfinite().all()):
            return domain
    return None


def _along_a_dimension() -> Iterator[Seed]:
    for name, operator in _schemas():
        arguments = {argument.name: str(argument.type) for argument in operator._schema.arguments}
        several = len(operator._schema.returns) > 1
        part = "[0]" if several else ""
        if name in REDUCTIONS and {"dim", "keepdim"} <= set(arguments):
            if "List" in arguments["dim"] and "correction" not in arguments:
                dim = "{dims}"
            elif "List" in arguments["dim"]:
                continue  # the same as another overload
            else:
                dim = "{dim}"
            text = f"torch.{name}({{x}}, dim={dim}, keepdim={{flag}}){part}"
            yield Seed(REDUCTIONS[name], "...", text)
        elif name in SCANS and _required(operator) == ["Tensor", "int"]:
            yield Seed(SCANS[name], "...", f"torch.{name}({{x}}, dim={{dim}}){part}")


def _modules() -> Iterator[Seed]:
    import torch

    for name in sorted(dir(torch.nn)):
        cls = getattr(torch.nn, name)
        if not (inspect.isclass(cls) and issubclass(cls, torch.nn.Module)):
            continue
        file = cls.__module__.rpartition(".")[2]
        if file not in MODULE_FAMILIES or SKIPPED_MODULES.search(name):
            continue
        parameters = list(inspect.signature(cls).parameters.values())
        required = [p.name for p in parameters if p.default is p.empty and p.kind not in (2, 4)]
        if not set(required) <= set(PARAMETERS):
            continue
        rank = re.search(r"([123])d$", name)
        form = SPATIAL[rank[1]] if rank else _form(required)
        start = f"nn.{name}({', '.join(PARAMETERS[p] for p in required)}"
        key = "conv transposed" if "Transpose" in name else file
        if name.startswith("Adaptive"):
            key = ""  # it has no stride
        for option in OPTIONS.get(key, ("",)):
            yield Seed(MODULE_FAMILIES[file], form, f"{start}{option})")


def _form(required: list[str]) -> str:
    """Return the shape form of the main argument of a module without a rank (1d, 2d, 3d) in its
    name.

    `required`: names of the constructor's required parameters.
    """
    if "normalized_shape" in required:
        return "... d"
    if "upscale_factor" in required or "downscale_factor" in required:
        return "n c h w"
    if {"num_channels", "groups", "size"} & set(required):
        return "n c h w"
    return "..."
