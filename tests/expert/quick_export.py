"""Make repeated calls of torch.export's `run_decompositions` quick.

Each call registers some 20 kernels for each of 525 composite operators and removes them again, and
looks up all composite operators once for each namespace: 100 to 150 ms, more than the rest of a
small module's capture. Most tests of the expert capture one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from torch._export import utils
from torch._subclasses import fake_impls
from torch.export import exported_program

NAME = "_override_composite_implicit_decomp"
LOOK_UP = "_materialize_cpp_cia_ops"
Kernels = dict[Any, dict[Any, Any]]
"""Kernels of operators by dispatch key."""
Table = Mapping[Any, Callable[..., Any]]
Override = Callable[[Table], AbstractContextManager[None]]
MOST = 4


@dataclass(frozen=True)
class Registered:
    """Kernels and rules that torch registers for one table of decompositions."""

    table: Table
    before: Kernels
    ruled: set[Any]
    """Operators that had a rule for fake tensors before."""
    kernels: Kernels
    rules: dict[Any, Any]
    """Rules of the operators for fake tensors."""


def quick_overrides(patch: pytest.MonkeyPatch) -> None:
    """Let torch register for a table once; later calls with an equal table restore what it
    registered. Let it look up the composite operators once. Versions of torch without these
    functions stay as they are."""
    if override := getattr(exported_program, NAME, None):
        patch.setattr(exported_program, NAME, remembering(override))
    if look_up := getattr(utils, LOOK_UP, None):
        # Looking up makes an operator an attribute of `torch.ops`; no test adds operators.
        patch.setattr(utils, LOOK_UP, cache(look_up))


def remembering(override: Override) -> Override:
    known: list[Registered] = []

    @contextmanager
    def overridden(table: Table) -> Iterator[None]:
        rules = fake_impls.op_implementations_dict
        before, ruled = kernels_of(table), table.keys() & rules.keys()
        same = (k for k in known if k.table == table and k.before == before and k.ruled == ruled)
        if (found := next(same, None)) is None:
            with override(table):
                own = {op: rules[op] for op in table if op in rules}
                known.insert(0, Registered(dict(table), before, ruled, kernels_of(table), own))
                del known[MOST:]
                yield
            return
        set_kernels(found.kernels)
        rules.update(found.rules)
        try:
            yield
        finally:
            set_kernels(before)
            for op in table:
                rules.pop(op, None)

    return overridden


def kernels_of(operators: Iterable[Any]) -> Kernels:
    return {op: op.py_kernels.copy() for op in operators}


def set_kernels(kernels: Kernels) -> None:
    for op, own in kernels.items():
        op.py_kernels.clear()
        op.py_kernels.update(own)
        op._dispatch_cache.clear()
