"""Compute fp64 convolutions with the fastest implementation at hand.

On a CPU these are torch's kernels, except for depthwise convolutions (`depthwise`). On a GPU these
are torch's own kernels where they are faster than cuDNN's. They unfold one sample at a time into a
matrix of columns and multiply it with cuBLAS, which has tensor cores for fp64. On an H200 they take
a half to a tenth of cuDNN's time, and equal its results within 3e-15
(docs/measurements/fp64-convolutions-h200.json, made by benchmarks/fp64_convolutions.py). They need
memory for the columns, so cuDNN computes convolutions whose columns are too large. It also computes
those with little work for each sample, because the samples of a batch are launched one after the
other, and those with groups.

Not covered: convolutions in other precisions, and RNNs.

Invariant: torch's flags select no algorithm here, and they have their old values after each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from cuagent.verify.oracle.depthwise import depthwise_convolution, is_depthwise
from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 1 / 16
"""Largest share of the device's memory for the columns of one convolution."""
MARGIN = 1.6
"""Memory that a call takes besides its output, divided by the size of its columns.

At most 1.56 was measured (KernelBench L1/70), usually 1.0.
"""
MOST_ELEMENTS = 2**31 - 1
"""Largest number of elements of one sample's columns and output. Kernels may count with 32 bits."""
LEAST_LIMIT = 1
"""Limit in bytes with which cuDNN computes every convolution, and flags still select no algorithm.
"""
LEAST_FLOPS = {False: 5e8, True: 5e7}
"""Least operations of one sample, for plain and for transposed convolutions.

On an H200 a sample takes at least 20 us to launch. cuDNN computes 15 TFLOP/s in fp64, and 1 TFLOP/s
in transposed convolutions.
"""


class Convolutions:
    """Chooses the implementation of each fp64 convolution by its shapes alone.

    `limit` is the largest number of bytes that a convolution may take for its columns; with 0
    nothing is intercepted.
    """

    def __init__(self, limit: int = 0, *, only_depthwise: bool = False) -> None:
        self.limit = limit
        self.only_depthwise = only_depthwise
        """True on a CPU, where torch computes all other convolutions."""
        self.memory = 0
        """Largest number of bytes that a call of torch's own kernels took besides its output."""
        self.count = 0
        """Number of fp64 convolutions so far that need not be computed in torch's default way."""

    def native(self) -> AbstractContextManager[Any]:
        """Return a context in which fp64 convolutions use torch's own kernels where they pay."""
        return intercept_operators(self._call) if self.limit else nullcontext()

    def end_search(self) -> None:
        """Intercept no operators from now on if none would be computed in another way."""
        if not self.count:
            self.limit = 0

    def _call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import torch

        wide = torch.float64, torch.complex128
        name = function.overloadpacket.__name__
        if name != "convolution" or args[0].dtype not in wide:
            return function(*args, **kwargs)
        if is_depthwise(args):
            self.count += 1
            return depthwise_convolution(args)
        if self.only_depthwise:
            return function(*args, **kwargs)
        self.count += 1
        needed, failed = columns_bytes(args), False
        if 0 < needed <= self.limit:
            self.memory = max(self.memory, needed)
            try:
                with _cudnn(enabled=False):
                    return function(*args, **kwargs)
            except RuntimeError:  # out of memory, or a form that torch's own kernels do not have
                failed = True
        with _cudnn(enabled=True):
            result = function(*args, **kwargs)
        if failed:
            self.limit = LEAST_LIMIT
        return result


def columns_bytes(args: Sequence[Any]) -> int:
    """Return the bytes that torch's own kernels take for a convolution besides its output; 0 where
    cuDNN must compute it.

    `args` are the arguments of aten.convolution: input, weight, bias, stride, padding, dilation,
    transposed, output padding, groups.
    """
    given: Tensor = args[0]
    weight: Tensor = args[1]
    stride, padding, dilation, transposed, output_padding, groups = args[3:9]
    kernel, spatial = weight.shape[2:], given.shape[2:]
    if groups != 1 or given.dim() != weight.dim():
        return 0
    wide = zip(spatial, kernel, _each(stride, kernel), _each(padding, kernel), strict=True)
    dilations, extra = _each(dilation, kernel), _each(output_padding, kernel)
    if transposed:
        outer = [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for (n, k, s, p), d, e in zip(wide, dilations, extra, strict=True)
        ]
        channels, positions = weight.shape[1], math.prod(spatial)
    else:
        outer = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for (n, k, s, p), d in zip(wide, dilations, strict=True)
        ]
        channels, positions = weight.shape[0], math.prod(outer)
    # The channels that a column holds: those of the output if transposed, else of the input.
    columns = weight.shape[1] * math.prod(kernel) * positions
    largest = max(columns, channels * math.prod(outer), given[:1].numel())
    flops = 2 * weight.numel() * positions
    if largest > MOST_ELEMENTS or flops < LEAST_FLOPS[bool(transposed)]:
        return 0
    return int(MARGIN * columns * given.element_size())


def _each(value: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return one number for each dimension of the kernel; torch may give one for all."""
    return list(value) * len(kernel) if len(value) == 1 else list(value)


@contextmanager
def _cudnn(*, enabled: bool) -> Iterator[None]:
    """Use cuDNN or not in the block, without its search for the fastest algorithm; then restore the
    flags."""
    from torch import _C

    before = _C._get_cudnn_enabled(), _C._get_cudnn_benchmark()
    _C._set_cudnn_enabled(enabled)
    _C._set_cudnn_benchmark(False)
    try:
        yield
    finally:
        _C._set_cudnn_enabled(before[0])
        _C._set_cudnn_benchmark(before[1])
