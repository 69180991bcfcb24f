"""Register a launcher as an operator of torch, so that torch.compile keeps it as one call.

The operator writes into its non-const pointers and returns nothing, as the launcher does: returning
a result would need a second buffer. torch passes contiguous tensors, as the launcher demands.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .calls import Launcher
from .prototypes import Parameter, Prototype

SCALARS = {"float": "float", "double": "float", "bool": "bool"}

_LIBRARIES: dict[str, Any] = {}
"""torch.library.Library objects by namespace. They are stored here because a library that is
garbage-collected removes its operators."""


def operator_of(launcher: Launcher, library: Path, on_cuda: bool) -> Callable[..., None]:
    """Return torch's operator for a launcher; register it on the first call."""
    import torch

    prototype = launcher.prototype
    # Libraries are named by the digest of their source, so equal names are equal kernels.
    namespace = f"cuagent_{hashlib.sha256(library.name.encode()).hexdigest()[:16]}"
    if namespace not in _LIBRARIES:
        _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    if not hasattr(getattr(torch.ops, namespace), prototype.name):
        made = _LIBRARIES[namespace]
        made.define(schema(prototype), tags=(_layout_tag(),))
        made.impl(prototype.name, launcher, "CUDA" if on_cuda else "CPU")
        torch.library.register_fake(
            f"{namespace}::{prototype.name}", lambda *arguments: None, lib=made
        )
    return getattr(getattr(torch.ops, namespace), prototype.name).default


def schema(prototype: Prototype) -> str:
    """Return the torch schema of an operator: `scale(Tensor(a0!)? a0, Tensor? a1, float a2) ->
    ()`."""
    words = [f"{_type(p, k)} a{k}" for k, p in enumerate(prototype.parameters)]
    return f"{prototype.name}({', '.join(words)}) -> ()"


def _type(parameter: Parameter, position: int) -> str:
    if not parameter.pointer:
        return SCALARS.get(parameter.type, "int")
    constant = re.search(r"\bconst\b", parameter.text.split("*")[0])
    return "Tensor?" if constant else f"Tensor(a{position}!)?"


def _layout_tag() -> Any:
    import torch

    tags = torch.Tag
    return getattr(tags, "needs_contiguous_strides", None) or tags.needs_fixed_stride_order
