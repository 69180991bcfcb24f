"""Run torch.compile once in the fork server, so that its children on the CPU start faster.

The first compilation builds inductor's tables of patterns, precompiles headers and tests vector
instructions. This takes several seconds of processor time, which each child would spend again.
Not covered: CUDA, whose context does not survive a fork.
"""

from __future__ import annotations

import os
from pathlib import Path


def warm_up(folder: Path) -> None:
    """Compile one small function for the CPU with torch.compile, in a process that has one thread.
    `folder`: inductor's cache."""
    import torch
    from torch._inductor import config

    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    config.compile_threads = 1
    torch.set_num_threads(1)
    try:
        torch.compile(_softmax_of_product)(torch.ones(8, 8), torch.ones(8, 8))
    finally:
        torch._dynamo.reset()
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        if cache is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache


def _softmax_of_product(x, y):  # type: ignore[no-untyped-def]
    return ((x @ y).relu() + 1).softmax(-1)
