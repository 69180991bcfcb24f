"""Find tensors in the memory of the CPU that a module on a GPU uses.

torch admits tensors without dimensions there as operands of GPU operators, such as
`torch.sqrt(torch.tensor(64.0))`. Kernels cannot read them. Those that are made of constants become
numbers: torch, too, passes their values to its kernels as numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuagent.expert.capture.constants import is_repeatable
from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.lowering import operator_name, value_of

if TYPE_CHECKING:
    import torch

MAX_SIZE = 64
"""Largest number of elements of a constant from which others are computed at capture time."""
EXACT = 1 << 24
"""Largest integer up to which float32 represents each integer."""


def constant_scalars(captured: Captured) -> dict[str, torch.Tensor]:
    """Return tensors without dimensions that constants in the CPU's memory determine; the keys are
    the names of fx nodes.

    The reference's operators compute them, on the CPU as in the reference. A copy to a GPU has the
    value of its argument. Outputs of forward are left out, because a caller may change them in
    place.
    """
    import torch

    returned = {value.name for value in captured.outputs if hasattr(value, "name")}
    known = {
        name: tensor
        for name, tensor in captured.constants.items()
        if tensor.device.type == "cpu" and tensor.numel() <= MAX_SIZE
    }
    for fx in captured.nodes:
        if fx.op != "call_function" or not is_repeatable(fx):
            continue
        small = fx.meta["val"].numel() <= MAX_SIZE
        if not small or any(source.name not in known for source in fx.all_input_nodes):
            continue
        args, options = torch.fx.map_arg((fx.args, dict(fx.kwargs)), lambda n: known[n.name])
        if operator_name(fx) == "_to_copy":
            options = {key: value for key, value in options.items() if key != "device"}
        elif device_of(fx) != "cpu":
            continue
        try:
            known[fx.name] = fx.target(*args, **options)
        except (RuntimeError, TypeError):
            continue
    found = {name: tensor for name, tensor in known.items() if name not in captured.constants}
    return {n: tensor for n, tensor in found.items() if tensor.ndim == 0 and n not in returned}


def number_of(tensor: torch.Tensor) -> float | int | None:
    """Return the value of a tensor without dimensions as a number; None for NaN, boolean values,
    complex values, and integers that float32 may not represent."""
    import torch

    if tensor.dtype is torch.bool or tensor.dtype.is_complex:
        return None
    value = tensor.item()
    if not tensor.dtype.is_floating_point:
        return int(value) if abs(value) <= EXACT else None
    return None if value != value else float(value)


def is_mixed(captured: Captured) -> bool:
    """Return True if some traced tensors are in the memory of a GPU and others in the CPU's."""
    return len({device for fx in captured.nodes if (device := device_of(fx))}) > 1


def device_of(fx: Any) -> str:
    """Return the type of the device of an fx node's traced result; "" if it is no tensor."""
    device = getattr(value_of(fx), "device", None)
    return "" if device is None else str(device.type)


def strangers(fx: Any) -> list[Any]:
    """Return the tensor operands of an operator on a GPU that are in the memory of the CPU."""
    if device_of(fx) in ("", "cpu") or operator_name(fx) == "getitem":
        return []
    return [source for source in fx.all_input_nodes if device_of(source) == "cpu"]
