"""Let the kernel that computes a convolution's input also store the input's channels-last copy.

In a chain of convolutions, the kernel of one has its result in registers. It stores the result and
the scaled float16 copy for the next one. A separate copy kernel would read the result again. A tile
must contain all channels, because the scale of a spatial position depends on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.convolutions.convolution import TRANSPOSED, Convolution
from cuagent.expert.graph.graph import Graph

MOST_CHANNELS = 128
"""Largest number of output channels of a convolution for which a tile can contain all channels."""


def with_copies(steps: Sequence[Any], graph: Graph) -> tuple[Any, ...]:
    """Return the steps with each float16 copy moved into the convolution kernel that computes its
    source."""
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
    """Return True if a tile of the kernel `producer` contains all channels of a value of this
    shape.
    """
    own = producer.right and producer.node.op != TRANSPOSED and not producer.is_copy
    plain = not (producer.reduces or producer.pool or producer.copy) and producer.groups == 1
    few = producer.channels_out <= MOST_CHANNELS
    return bool(own and plain and few) and shape == producer.node.shape and dtype == "float32"
