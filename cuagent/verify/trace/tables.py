"""Find the lengths of the tables that a reference indexes with its integer inputs.

The task's own few indices may not include the last row of a table, where kernels often err. An
input is recognized by its values, through any views and casts. Not covered: indices that are
computed (a sum, a hash), whose range no single input determines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Tensor

_ALONG = """
gather index_select scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce
"""
ALONG = frozenset(_ALONG.split())
"""Indexing operators with arguments (self, dim, index, ...)."""
ROWS = frozenset(("embedding", "_embedding_bag", "_embedding_bag_forward_only"))
"""Indexing operators with arguments (weight, indices, ...)."""
CLASSES = frozenset(("nll_loss_forward", "nll_loss2d_forward"))
"""Loss operators with arguments (self, target, ...); `target` indexes classes."""


def tables(run: Callable[[], object], inputs: Sequence[Tensor]) -> list[int]:
    """Call `run`; return for each input the length of the shortest table that it indexes, or 0."""
    import torch

    sizes = [0] * len(inputs)
    wholes = {n: x.reshape(-1) for n, x in enumerate(inputs) if not is_inexact(x)}
    if not wholes:
        return sizes

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        for index, size in _indexed(function.overloadpacket.__name__.rstrip("_"), args):
            for number, whole in wholes.items():
                if index.numel() == whole.numel() and torch.equal(index.reshape(-1), whole.long()):
                    sizes[number] = min(size, sizes[number] or size)
        return function(*args, **kwargs)

    with intercept_operators(call):
        run()
    return sizes


def wraps(run: Callable[[], object]) -> bool:
    """Call `run`; return True if an operator gets a negative index, which counts from the end."""
    found = False

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal found
        for index, _ in _indexed(function.overloadpacket.__name__.rstrip("_"), args):
            found = found or bool((index < 0).any())
        return function(*args, **kwargs)

    with intercept_operators(call):
        run()
    return found


def _indexed(name: str, args: Sequence[Any]) -> Iterator[tuple[Tensor, int]]:
    """Yield (index tensor, length of the axis that it indexes) for each index argument of an
    operator.
    """
    import torch

    if name in ALONG and args[0].dim():
        yield args[2], args[0].shape[args[1]]
    elif name in ROWS:
        yield args[1], args[0].shape[0]
    elif name in CLASSES:
        yield args[1], args[0].shape[min(1, args[0].dim() - 1)]
    elif name in ("index", "index_put"):
        for index, size in zip(args[1], args[0].shape, strict=False):
            if isinstance(index, torch.Tensor) and index.dtype is not torch.bool:
                yield index, size
