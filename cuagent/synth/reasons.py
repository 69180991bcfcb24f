"""Define the reasons for which the filter rejects a candidate task."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reason why a candidate task was rejected, in the order of the checks."""

    COMPOSITION = "no operators fit together"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near duplicate"
    KERNELBENCH = "like a KernelBench problem"
    SOURCE = "no task"
    FAILS = "does not run in eager mode"
    LABEL = "wrong operator label"
    MEMORY = "needs too much memory"
    TIME = "outside of the time window"
    NOT_FINITE = "output with NaN or Inf"
    RANDOM = "random or with hidden state"
    FP64_FAILS = "does not run in fp64"
    FP64_DIFFERS = "eager differs from fp64"
    DEGENERATE = "degenerate"
    IGNORED = "input or weight without effect"
    IDLE = "operator without effect"
    TRAINING = "random in training mode"
    COMPILE_FAILS = "does not run under torch.compile"
    COMPILE_DIFFERS = "torch.compile differs from fp64"
    CRASHED = "process died"
    TIMED_OUT = "over the time limit"
    SLOW = "too slow to check"


MEANINGS = {
    Reason.DUPLICATE: "an earlier candidate has the same text, or the same syntax tree but for "
    "names and sizes",
    Reason.NEAR_DUPLICATE: "an earlier candidate has the same operator graph on the same kinds of "
    "inputs",
    Reason.DEGENERATE: "a constant, zeros, an input or half of the work passes at 1e-2",
    Reason.SLOW: "its checks would keep the GPU from other candidates",
    Reason.TIME: "no batch size has an eager time in the window",
}
"""Explanations in the data card for reasons whose names need one."""


class Rejected(Exception):
    """Error: a candidate task failed a check; it has the reason and a detail of at most 300
    characters."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = " ".join(detail.split())[:300]
