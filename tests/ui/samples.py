"""Sample verdicts, timings, judgements and events, as input for the tests of the views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cuagent import events
from cuagent.build.result import Build, Diagnostic, Library
from cuagent.judgement import Judgement
from cuagent.measure.rungs import Ladder, Rung, gain_of
from cuagent.score import Score
from cuagent.task.task import Precision
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.verdict import Draw, Reason, RuleResult, Verdict

BUILT = Build(
    "a1",
    (
        Library("kernels/x.cu", Path("x.so"), "k", True, 0.1),
        Library("kernels/y.cu", Path("y.so"), "l", False, 1.7),
    ),
    (),
    True,
    1.75,
)
NOT_BUILT = Build(
    "a3",
    (),
    tuple(
        Diagnostic(
            "kernels/x.cu",
            line,
            'identifier "thread_idx" is undefined',
            "    int i = blockIdx.x * blockDim.x + thread_idx.x;  // the place in the row",
        )
        for line in (12, 14, 18, 20, 22)
    ),
    False,
    1.2,
)
RIGHT = Verdict(
    True,
    Reason.ACCEPTED,
    "",
    "t",
    "a1",
    RuleResult(True, 0.01),
    RuleResult(True, 0.42),
    Precision.MATCH,
    (Draw("normal", 1, 1e-6, 1e-7, 0.4, True),),
    "bubblewrap",
    {"worker": 0.4, "oracle": 1.1, "total": 1.6},
)
WRONG = Verdict(
    False,
    Reason.WRONG_VALUES,
    "output[0] differs at 12 of 4096 places, the first at [3, 17], all of them in the last "
    "columns of their rows",
    "t",
    "a2",
    RuleResult(False, 12.0),
    RuleResult(False, 4000.0),
    None,
    (
        Draw("normal", 1, 1e-6, 1e-7, 0.4, True),
        Draw("offset 1e4", 2, 3.2e-2, 1e-3, 12.44, False, "one-pass variance?"),
    ),
    "bubblewrap",
    {"worker": 0.4, "oracle": 1.1, "total": 1.6},
)
FAST = Timing(
    (
        Arm("candidate", 12.3e-6, ()),
        Arm("eager", 24.6e-6, ()),
        Arm("compile", 17.6e-6, (), 2.5),
    ),
    {"eager": Ratio(2.0, 1.95, 2.05), "compile": Ratio(1.43, 1.38, 1.49)},
    Effort.QUICK,
    "NVIDIA H200",
    1.4,
    floor=Floor(6e-6, "memory", 6e-6),
)
MIXED = Timing(
    (
        Arm("candidate", 1.23e-3, ()),
        Arm("eager", 1.1e-3, ()),
        Arm("compile", 0.0, (), failed="InductorError: no C++ compiler was found here"),
    ),
    {"eager": Ratio(0.9, 0.88, 0.93)},
    Effort.RECORD,
    "a CPU, 2 threads",
    9.0,
)
GAIN = Judgement("a1", BUILT, RIGHT, FAST, Score(3, 2.0, 1.43))
REJECTED = Judgement("a2", BUILT, WRONG, None, Score(-1))
BROKEN = Judgement("a3", NOT_BUILT, WRONG, None, Score(-1))
SLOWER = Judgement("a4", BUILT, RIGHT, MIXED, Score(1, 0.9))
UNSURE = Judgement(
    "a5",
    BUILT,
    RIGHT,
    replace(FAST, ratios={name: Ratio(1.01, 0.97, 1.05) for name in ("eager", "compile")}),
    Score(1, 1.01, 1.01),
)
DOUBTFUL = replace(
    GAIN,
    timing=replace(
        FAST, floor=Floor(6e-6, "memory", 13e-6), notes=("machine busy: 40 % by others",)
    ),
)


def _rung(name: str, seconds: float, over: Ratio) -> Rung:
    return Rung(name, seconds, over, 1e-7, True, 1.0, None, True)


LADDER = Ladder(
    "t",
    "match",
    "NVIDIA H200",
    {"torch": "2.11"},
    (
        _rung("eager", 30e-6, Ratio(1.0, 1.0, 1.0)),
        _rung("compile", 21.4e-6, Ratio(1.4, 1.36, 1.44)),
        _rung("reduce-overhead", 15e-6, Ratio(2.0, 1.94, 2.06)),
    ),
    4.0,
    later=("max-autotune-no-cudagraphs",),
    floor=Floor(6e-6, "memory", 6e-6),
)
_ON_TOP = Timing(
    (
        Arm("candidate", 12e-6, ()),
        Arm("eager", 30e-6, ()),
        Arm("compile", 21.4e-6, (), 2.5),
        Arm("reduce-overhead", 15e-6, (), 2.5),
    ),
    {
        "eager": Ratio(2.5, 2.44, 2.56),
        "compile": Ratio(1.79, 1.74, 1.84),
        "reduce-overhead": Ratio(1.25, 1.22, 1.28),
    },
    Effort.QUICK,
    "NVIDIA H200",
    1.4,
    floor=Floor(6e-6, "memory", 6e-6),
)
ON_TOP = Judgement("a6", BUILT, RIGHT, _ON_TOP, Score(3, 2.5, 1.79), gain_of(_ON_TOP, LADDER))

KERNEL = """// scale.cu
#include <cuda_runtime.h>

extern "C" __global__ void scale_kernel(float* out, const float* in, float factor, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}
"""


def a_run() -> Iterator[events.Event]:
    """Yield the events of a short run that contains every kind of event."""
    yield events.Phase("opening the task")
    yield events.RunStarted("20261121-071500-softmax", Path("runs/x"), "softmax", "cpu", "expert")
    yield events.LadderMeasured(LADDER)
    yield events.StepStarted(1)
    yield events.TextDelta("Rows of 4096 fit a block.", "reasoning")
    said = "I fuse scale, bias and softmax in one kernel, one row a block.\n"
    for start in range(0, len(said), 5):
        yield events.TextDelta(said[start : start + 5])
    yield events.ToolStarted("1", "bash", "make -j\nall")
    yield events.ToolOutput("1", "\x1b[31mcompiling\x1b[0m\n")
    output = "\n".join(f"\x1b[31mline\x1b[0m {i}" for i in range(20))
    yield events.ToolFinished("1", "bash", output, False, 2.5)
    written = json.dumps({"path": "kernels/scale.cu", "text": KERNEL})
    yield events.ToolStarted("2", "write", "kernels/scale.cu", written)
    yield events.ToolFinished("2", "write", "wrote it", False, 0.0)
    old, new = "def f(x):\n    y = g(x)\n", "def f(x):\n    y = empty_like(x)\n    h(y, x)\n"
    changed = json.dumps({"path": "model_new.py", "old": old, "new": new})
    yield events.ToolStarted("3", "edit", "model_new.py", changed)
    yield events.ToolFinished("3", "edit", "changed it", False, 0.0)
    yield events.Spent(1, 3.0, 12_000, 340, 0.0412)
    yield events.StepStarted(2)
    yield events.ToolStarted("4", "read", "a.py")
    yield events.ToolStarted("5", "read", "b.py")
    yield events.ToolFinished("4", "read", "one\ntwo", False, 0.0)
    yield events.ToolFinished("5", "read", "b.py: no such file", True, 0.0)
    yield events.ToolStarted("6", "verify", "")
    yield events.Judged(1, REJECTED)
    yield events.ToolFinished("6", "verify", "text for the model", False, 3.0)
    yield events.Notice("72 % of the cost limit is spent", "warning")
    yield events.ToolStarted("7", "verify", "")
    yield events.Judged(2, ON_TOP)
    yield events.ToolFinished("7", "verify", "text for the model", False, 3.0)
    yield events.Spent(2, 30.0, 42_000, 2_340, 0.1412)
    yield events.RunEnded("submitted", ON_TOP, "one fused kernel", LADDER)
