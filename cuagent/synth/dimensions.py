"""Define the choices for sizes in composed tasks: small ones for a CPU, realistic layers for a GPU.

Only the batch size is chosen later, to reach a target time (`sizes.py`). With small sizes a GPU
task would need a batch of millions to take a millisecond, which no real module has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

TRIES = 50
LARGEST_PARAMETER = 1 << 25
"""Largest number of elements of one parameter."""


@dataclass(frozen=True)
class Dimensions:
    """Choices for the sizes in tasks for one kind of device."""

    inputs: Mapping[int, tuple[tuple[int, ...], ...]]
    """Choices for each dimension of the first input after the batch, by the input's number of
    dimensions."""
    most_elements: int
    """Largest number of elements of the first input for each element of the batch."""
    few_elements: int
    """Number of elements for each element of the batch up to which an input counts as small. Values
    computed from a small input may grow more."""
    widths: tuple[int, ...]
    """Choices for the number of output features of a product."""
    channels: tuple[int, ...]
    """Choices for the number of output channels of a convolution."""
    hidden: tuple[int, ...]
    """Choices for the number of hidden units of a recurrent module."""
    vocabulary: tuple[int, ...]
    lengths: tuple[int, ...]
    """Choices for the number of indices in one sequence for an embedding."""
    loop_widths: tuple[int, ...]
    loop_matrix: int
    """Largest width of a matrix that is the state of a loop."""
    block_widths: tuple[int, ...]
    block_lengths: tuple[int, ...]

    def shape(self, draw: random.Random, rank: int) -> tuple[int, ...]:
        """Return random sizes after the batch dimension for an input with `rank` dimensions."""
        for _ in range(TRIES):
            found = tuple(draw.choice(sizes) for sizes in self.inputs[rank])
            if math.prod(found) <= self.most_elements:
                return found
        return tuple(min(sizes) for sizes in self.inputs[rank])


SMALL = Dimensions(
    inputs={
        1: (),
        2: ((16, 24, 32, 48, 64, 96, 100, 127, 128, 192, 250, 256, 384, 512, 1000),),
        3: ((4, 8, 12, 16, 24, 32, 50, 64), (16, 20, 32, 48, 64, 96, 100, 128, 200, 256)),
        4: (
            (3, 4, 6, 8, 12, 16, 24, 32),
            (7, 8, 12, 14, 16, 20, 28, 32),
            (7, 8, 12, 15, 16, 24, 32),
        ),
        5: ((2, 3, 4, 8), (4, 5, 6, 8), (6, 7, 8, 10), (6, 8, 9, 10)),
    },
    most_elements=1 << 16,
    few_elements=128,
    widths=(16, 24, 32, 40, 48, 64, 96, 100, 128),
    channels=(16, 24, 32, 40, 48, 64, 96, 100, 128),
    hidden=(8, 12, 16, 20, 24, 32),
    vocabulary=(100, 256, 500, 777, 1000, 2048),
    lengths=(8, 16, 20, 32),
    loop_widths=(16, 24, 32, 48, 64, 96, 128),
    loop_matrix=48,
    block_widths=(32, 48, 64, 96, 128, 192),
    block_lengths=(16, 20, 32, 50, 64),
)
LARGE = Dimensions(
    inputs={
        1: (),
        2: ((256, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 5000, 8192),),
        3: (
            (16, 32, 50, 64, 100, 128, 196, 197, 256, 384, 512, 1000, 1024, 2048),
            (64, 80, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096),
        ),
        4: (
            (3, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
            (7, 14, 16, 28, 32, 56, 64, 112, 128, 224),
            (7, 14, 15, 16, 28, 32, 56, 64, 112, 128, 224),
        ),
        5: ((3, 4, 8, 16, 32, 64), (4, 8, 16), (14, 16, 28, 32, 56), (14, 16, 28, 32, 56)),
    },
    most_elements=1 << 20,
    few_elements=1 << 13,
    widths=(64, 128, 192, 256, 320, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096),
    channels=(16, 24, 32, 48, 64, 96, 128, 192, 256),
    hidden=(64, 96, 128, 192, 256, 384, 512),
    vocabulary=(1000, 2048, 5000, 8192, 10000, 30522, 32000, 50257),
    lengths=(16, 32, 50, 64, 128, 256),
    loop_widths=(64, 128, 192, 256, 384, 512, 768, 1024),
    loop_matrix=128,
    block_widths=(256, 384, 512, 768, 1024, 2048),
    block_lengths=(64, 100, 128, 197, 256, 512),
)
DIMENSIONS = {"small": SMALL, "large": LARGE}
"""Choices of sizes by name (`Grammar.sizes`)."""
