"""Write the C function that launches a CUDA kernel of an anchored family."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.streaming.text import Writer


def write_launcher(
    w: Writer, name: str, parameters: Sequence[str], total: int, threads: int
) -> None:
    """Write the C function that launches the CUDA kernel `{name}_device` with `total` threads, in
    blocks of `threads`."""
    arguments = ", ".join(p.split()[-1] for p in parameters)
    w.open(f'extern "C" void {name}({", ".join(parameters)}, cudaStream_t stream)')
    w(f"{name}_device<<<{math.ceil(total / threads)}, {threads}, 0, stream>>>({arguments});")
    w.close()
