"""Scale the inputs of a convolution whose products are computed in float16."""

from __future__ import annotations

INPUT_SCALE = 16.0
"""Factor by which inputs are multiplied before they become float16."""
SCALED = f"""\
    most = tl.max(total.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    fits = ((most >= 0x38800000) & (most < 0x45000000)) | (most == 0)
    total = tl.where(fits[:, None], total * {INPUT_SCALE!r}, float("nan"))""".splitlines()
"""Triton lines that scale the channels of a spatial position for float16.

The scale is NaN unless the largest channel is in [2^-14, 2^11). Smaller channels then have an error
below 2^-15 of the largest one.
"""
