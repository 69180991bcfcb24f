"""Store the channels-last copy that a convolution needs in the kernel that computes its input.

In a chain of convolutions the kernel of one has its result in registers: it stores the result and
the scaled float16 copy for the next one. A separate kernel for the copy would read the result
again. A tile must have all channels, because the scale test of a place needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.convolutions.convolution import TRANSPOSED, Convolution
from cuagent.expert.graph.graph import Graph

MOST_CHANNELS = 128
"""Most channels of a tile."""


def with_copies(steps: Sequence[Any], graph: Graph) -> tuple[Any, ...]:
    """Move each copy in float16 into the convolution that computes its source."""
    result = list(steps)
    for step in steps:
        if not isinstance(step, Convolution) or not step.is_copy or step.node.dtype != "float16":
            continue
        source = graph.node(str(step.node.args[0]))
        producer = next(
            (s for s in result if isinstance(s, Convolution) and source.name in s.outputs), None
        )
        if producer is None or not _fits(producer, source.shape, source.dtype):
            continue
        name = step.node.name
        made = replace(
            producer,
            copy=(source.name, name),
            outputs=(*producer.outputs, name),
            places=producer.places | {name: ()},
        )
        result[result.index(producer)] = made
        result.remove(step)
    return tuple(result)


def _fits(producer: Convolution, shape: tuple[int, ...], dtype: str) -> bool:
    """Return True if each tile of a kernel can have all channels of a value of this shape."""
    own = producer.right and producer.node.op != TRANSPOSED and not producer.is_copy
    plain = not (producer.reduces or producer.pool or producer.copy) and producer.groups == 1
    few = producer.channels_out <= MOST_CHANNELS
    return bool(own and plain and few) and shape == producer.node.shape and dtype == "float32"
