"""Limit torch's threads in the referee while it compares small outputs on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cuagent.task import Device
from cuagent.verify.context import VerifyContext

FEW_ELEMENTS = 1 << 22
"""Number of output elements below which comparisons on the CPU use one thread.

A thread pool that shares its cores with other processes waits for its own threads: 65 s for work
that one thread does in 0.1 s.
"""


@contextmanager
def one_thread_if_small(context: VerifyContext) -> Iterator[None]:
    """Context in which torch uses one thread on the CPU if the outputs are small."""
    import torch

    before = torch.get_num_threads()
    elements = sum(view.numel() for view in context.outputs.tensors())
    small = context.task.device is Device.CPU and elements < FEW_ELEMENTS
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
