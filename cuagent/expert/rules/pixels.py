"""Lower pixel shuffles, which move channels of an image to pixels, or pixels to channels."""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import Kind, Shape
from cuagent.expert.graph.lowering import Lowering, operand, rule, shape_of
from cuagent.expert.rules.views import strided


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(low: Lowering, fx: Any) -> str | None:
    """Lower pixel_shuffle or pixel_unshuffle to a permuted copy: r * r channels become r x r
    pixels, or the reverse."""
    x, r = operand(low, fx.args[0]), int(fx.args[1])
    if not isinstance(x, str) or low.by_name[x].kind is Kind.STRIDED:
        return None
    *batch, channels, height, width = low.shape(x)
    n, places = math.prod(batch), channels * height * width
    if "unshuffle" in str(fx.target):
        parts: Shape = (n, channels, r, r, height // r, width // r)
        steps: Shape = (places, height * width, width, 1, r * width, r)
    else:
        parts = (n, channels // (r * r), height, r, width, r)
        size = height * width
        steps = (places, r * r * size, width, r * size, 1, size)
    call = f"{{0}}.as_strided({list(parts)}, {list(steps)})"
    moved = strided(low, x, call, parts, steps, 0)
    return low.view(low.pointwise("cast", moved, hint="shuffled"), shape_of(fx), "")
