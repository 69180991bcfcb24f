"""Options of a candidate: the choices that the search varies."""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = "backward: "
"""Prefix of the operators of the backward pass in `Options.keep` and `Candidate.origins`."""


@dataclass(frozen=True)
class Options:
    """One point of the search: rewrites, fusions and schedule."""

    fold: bool = True
    """True to fold per-channel arithmetic into the weights of the layer before it."""
    attention: bool = True
    """True to compute attention that is written as products and a softmax by the library's fused
    call."""
    own_attention: bool = False
    """CUDA: true to compute attention by own kernels also where the library has a call for it."""
    recurrences: bool = True
    """True to compute loops over cells by one call; on the CPU also recurrent layers by own
    kernels."""
    own_recurrences: bool = True
    """CUDA: true to compute recurrent layers by own kernels where one fits."""
    merge: bool = False
    """True to merge linear layers of the same input into one product."""
    constants: bool = True
    """True to compute values such as masks and position biases only once, if they depend on
    parameters alone."""
    widen: bool | None = None
    """Compute half-precision products in float32; None decides it from the processor."""
    products: bool = True
    """CUDA: true to compute matrix products, with the operations behind them, by own kernels."""
    exact_convolutions: bool = False
    """CUDA: true to compute float32 convolutions with float32 precision even where TF32 is
    admitted."""
    tf32_few_channels: bool = False
    """CUDA: true to use TF32, where it is admitted, also for float32 convolutions of few
    channels."""
    convolutions: str = "own"
    """CUDA: how convolutions are computed. "own": by own kernels where they may be faster; "every":
    by own kernels if one fits; "library": by torch in the captured layout; "channels_last": by
    torch in channels-last layout."""
    partial_sums: bool = True
    """CUDA: true to let convolution kernels also sum their results over spatial positions, for the
    norms and means that follow."""
    copies: bool = True
    """CUDA: true to let a convolution's kernel also write the channels-last copy that the next
    convolution reads."""
    split: bool = True
    """CUDA: true to split the operands of large float32 products into float16 parts before the
    product."""
    tiles: int = 0
    """CUDA: rank of the tile sizes that a product uses, in the order of the cost model; 0 is the
    best."""
    compile: str = ""
    """Mode of torch.compile for everything but the kernels; "" runs it eagerly."""
    keep: frozenset[str] = frozenset()
    """Names of the captured operators that remain calls of torch."""
    tile: int = 64
    """CPU: number of adjacent rows processed together if the reduced dimension is not the
    innermost."""
    threads: int = 0
    """CUDA threads per row; 0 chooses them from the row length."""
    vector: bool = True
    """CUDA: true to use 16-byte accesses if the shape allows them."""
    chains: bool = True
    """CPU: true to launch small kernels that follow one another by one call."""
