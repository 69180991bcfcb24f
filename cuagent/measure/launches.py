"""Decide from a call's duration and its number of launches if the host's work may show in it."""

from __future__ import annotations

from collections.abc import Mapping

from cuagent.measure.roofline.model import OperatorWork

GAP_S = 2e-6
"""Pause in seconds between two kernels of a busy GPU, which a CUDA graph may save at each
launch."""
LEAST_GAIN = 0.01
"""Least share of a call's time that CUDA graphs must be able to save; below it their rungs are not
timed."""
BUSY_CALL_S = 2e-3
"""Duration of a call in seconds above which its kernels keep the GPU busy even in compiled code, so
that CUDA graphs save nothing."""
RECURRENT = ("gru", "lstm", "rnn")
"""Parts of names of operators that launch a kernel for each time step. Their number of launches is
unknown."""


def graphs_may_gain(call_s: float, operators: Mapping[str, OperatorWork]) -> bool:
    """Return True if CUDA graphs could save at least 1 % of a call's time.

    `call_s` is the duration of an eager call in seconds. `operators` are the operators that it
    launches by name, {} if unknown; the answer is then True. Graphs save the host's time, which a
    busy GPU hides, and the pauses between kernels.
    """
    if not operators or any(part in name for name in operators for part in RECURRENT):
        return True
    launches = sum(operator.calls for operator in operators.values())
    return call_s < max(BUSY_CALL_S, launches * GAP_S / LEAST_GAIN)
