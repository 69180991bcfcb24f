"""Names of the arms of a measurement: the candidate, and the reference in each of its modes.

`cuagent.worker.arms` builds the model for each name.
"""

from __future__ import annotations

CANDIDATE = "candidate"
EAGER = "eager"
COMPILE = "compile"
"""Name of the arm torch.compile in its default mode.

Any other arm name is passed to torch.compile as its mode. A name may have options: `+tf32`,
`+fp32`, `+bf16` (autocast), `+channels_last`, `+cudnn_benchmark`, and `+cuda_graph` (cuagent
captures the graph, not torch.compile).
"""
GRAPH, BENCHMARK = "cuda_graph", "cudnn_benchmark"
MODES = (EAGER, COMPILE, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OVERWRITING = ("reduce-overhead", "max-autotune")
"""Modes whose calls write their results to the same memory: torch's own CUDA graphs. A user must
copy a result that is needed after the next call."""
OPTIONS = ("tf32", "fp32", "bf16", "channels_last", BENCHMARK, GRAPH)


def same_code(name: str) -> str:
    """Return the name of the arm whose compiled code, or whose choice of kernels, torch's cache
    has for the arm `name` too; "" if there is none.

    A graph that cuagent captures runs the code of the default mode. Both modes with autotuning time
    the same kernels.
    """
    mode, *options = name.split("+")
    if mode == COMPILE and GRAPH in options:
        return "+".join([mode, *(option for option in options if option != GRAPH)])
    return "+".join(["max-autotune-no-cudagraphs", *options]) if mode == "max-autotune" else ""
