"""Options of a candidate, which the expert's search varies."""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = "backward: "
"""Prefix that marks operators of the backward pass in `Options.keep` and `Candidate.origins`."""


@dataclass(frozen=True)
class Options:
    """Choices that determine one candidate: rewrites, fusions and schedule."""

    fold: bool = True
    """True to fold per-channel arithmetic into the weights of the layer before it."""
    attention: bool = True
    """True to replace attention that is written as products and a softmax by torch's fused call."""
    own_attention: bool = False
    """CUDA: true to compute attention by generated kernels also where torch has a fused call."""
    recurrences: bool = True
    """True to replace loops over cells by one call; on the CPU recurrent layers by generated
    kernels.
    """
    own_recurrences: bool = True
    """CUDA: true to compute recurrent layers by generated kernels where possible."""
    merge: bool = False
    """True to merge linear layers that read the same input into one product."""
    constants: bool = True
    """True to compute values that depend on parameters alone (masks, position biases) only once."""
    widen: bool | None = None
    """True to compute half-precision products in float32; None decides it from the processor."""
    products: bool = True
    """CUDA: true to compute matrix products, and the operations after them, by generated
    kernels.
    """
    small_products: bool = False
    """CUDA: true to compute small products by generated kernels too, with the operations after
    them: half-precision products of few rows, such as those of single tokens, large batches of
    small products, others of few multiplications, and narrow linear layers that follow each other,
    all in one kernel."""
    exact_convolutions: bool = False
    """CUDA: true to compute float32 convolutions with float32 precision even where TF32 is
    admitted."""
    tf32_few_channels: bool = False
    """CUDA: true to use TF32, where it is admitted, also for float32 convolutions of few
    channels."""
    convolutions: str = "own"
    """CUDA: how convolutions are computed.

    "own": by generated kernels where they may be faster; "every": by generated kernels where
    possible; "library": by torch in the captured layout; "channels_last": by torch in channels-last
    layout; "network": by torch in channels-last layout, in which all values between them stay.
    """
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
    """CUDA: rank of a product's tile sizes in the cost model; 0 is the best."""
    compile: str = ""
    """Mode of torch.compile for everything except the kernels; "" for eager execution."""
    graph: bool = False
    """CUDA: true to replay the forward as a CUDA graph, which the module captures itself."""
    keep: frozenset[str] = frozenset()
    """Names of the captured operators that remain torch calls."""
    tile: int = 64
    """CPU: number of adjacent rows processed together if the reduced dimension is not the
    innermost."""
    threads: int = 0
    """CUDA: threads per row; 0 chooses them from the row length."""
    vector: bool = True
    """CUDA: true to use 16-byte accesses if the shape allows them."""
    chains: bool = True
    """True to launch small kernels together: consecutive ones by one call on the CPU (`chains`),
    independent ones as one kernel on a GPU (`bundles`)."""
