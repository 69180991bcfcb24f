"""Capture a forward that overwrites tensor attributes of its module, such as a hidden state.

`torch.export` refuses to change a tensor that is neither a parameter nor a buffer. Such attributes
are buffers during the capture. A state is supported if forward never reads its old value: it is
then a further result, which the generated forward assigns to the attribute. Not covered: attributes
of submodules, because torch.export does not see assignments to them; a state that is an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuagent.expert.graph.lowering import operator_name

if TYPE_CHECKING:
    import torch


def plain_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors among a module's own attributes that are neither parameters nor
    buffers."""
    import torch

    return {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, torch.Tensor) and name.isidentifier()
    }


@contextmanager
def as_buffers(model: torch.nn.Module, plain: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Make these attributes buffers inside this context."""
    for name, value in plain.items():
        delattr(model, name)
        model.register_buffer(name, value, persistent=False)
    try:
        yield
    finally:
        for name, value in plain.items():
            model._buffers.pop(name, None)
            model._non_persistent_buffers_set.discard(name)
            setattr(model, name, value)


def forget_old_value(placeholder: Any) -> bool:
    """Replace copies to a state by the values that are copied; return False if forward reads the
    old value of the state.
    """
    for user in list(placeholder.users):
        if operator_name(user) != "copy" or user.args[0] is not placeholder:
            return False
        source = user.args[1]
        if source is placeholder or _kind(source) != _kind(placeholder):
            return False
        user.replace_all_uses_with(source)
        user.graph.erase_node(user)
    return True


def _kind(node: Any) -> tuple[Any, Any]:
    value = node.meta["val"]
    return tuple(value.shape), value.dtype
