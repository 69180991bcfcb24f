"""Capture a recurrent layer as one operator, without running its steps on fake tensors.

torch decomposes `aten.gru` and its relatives on fake tensors to find the shapes of their outputs: a
GRU of six layers and 512 steps took 20 s of the host of an H200, three times over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cuagent.measure.roofline.recurrent import ARGUMENTS, FUNCTIONS, empty_outputs

Implementation = Callable[..., Any]


@contextmanager
def whole_recurrent_layers() -> Iterator[None]:
    """Context in which torch's recurrent operators on fake tensors return empty outputs.

    On other tensors, and for packed sequences, they run as usual.
    """
    import torch
    from torch._C import DispatchKey
    from torch._decomp import decomposition_table

    keys = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
    operators = {name: getattr(torch.ops.aten, name).input for name in FUNCTIONS}
    places = [(name, op.py_kernels, key) for name, op in operators.items() for key in keys]
    places += [(name, decomposition_table, op) for name, op in operators.items()]
    usual = [(name, table, key, table[key]) for name, table, key in places if key in table]
    try:
        for name, table, key, implementation in usual:
            table[key] = _shapes_of(name, implementation)
            operators[name]._dispatch_cache.clear()
        yield
    finally:
        for name, table, key, implementation in usual:
            table[key] = implementation
            operators[name]._dispatch_cache.clear()


@cache
def _shapes_of(name: str, usual: Implementation) -> Implementation:
    """Return an implementation of the operator `name` that computes nothing on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    def outputs(*args: Any) -> Any:
        if not isinstance(args[0], FakeTensor) or len(args) != len(ARGUMENTS):
            return usual(*args)
        return tuple(empty_outputs(name, dict(zip(ARGUMENTS, args, strict=True))))

    return outputs
