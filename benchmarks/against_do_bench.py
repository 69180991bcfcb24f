"""Why our times differ from triton.testing.do_bench's: one condition of the measurement at a time.

    python benchmarks/against_do_bench.py [--out docs/measurements/do_bench.json]

The example softmax in eager and compiled, small and large, in this process: events around calls
with and without a flush before each, on one input or on many, with the flush of do_bench (it
zeroes 256 MB) or none; then do_bench itself, then our own protocol on the same task, whose workers
are processes that take turns. Microseconds, medians of 200 calls. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cuagent.measure.protocol import Timer
from cuagent.task import load_task, open_reference
from cuagent.verify.referee import Referee

CALLS, INPUTS = 200, 23


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    from triton.testing import do_bench

    rows = []
    for inputs in ("f32[2048,1024]", "f32[8192,1024]"):
        task = load_task("examples/softmax_bias_scale.py", inputs=inputs, device="cuda")
        with Referee(task) as referee, Timer(referee, ("eager", "compile")) as timer:
            timing = timer.compare()
        reference = open_reference(task)
        for name in ("eager", "compile"):
            model = reference.model(0)
            if name == "compile":
                model.compile()
            sets = [reference.inputs(seed) for seed in range(INPUTS)]
            arm = timing.arm(name)
            with torch.no_grad():
                found = {
                    condition: 1e6 * _events(model, sets[:many], flush)
                    for condition, many, flush in (
                        ("one input, no flush", 1, 0),
                        ("one input, flush", 1, 1 << 28),
                        ("many inputs, no flush", INPUTS, 0),
                        ("many inputs, flush", INPUTS, 1 << 28),
                        ("many inputs, flush and output copied", INPUTS, -(1 << 28)),
                    )
                }
                for condition, duty in (
                    ("blocks of 20 after 5 ms idle", 0),
                    ("blocks of 20 after 5 ms idle and 40 flushes", 40),
                ):
                    found[condition] = 1e6 * _events(model, sets, 1 << 28, 20, duty)
                one = sets[0]
                found["do_bench"] = 1e3 * float(
                    do_bench(lambda m=model, i=one: m(*i), return_mode="median")
                )
            found["our protocol"] = 1e6 * arm.median if arm else float("nan")
            rows.append({"inputs": inputs, "arm": name} | found)
            print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1))
    return 0


def _events(
    model: Callable[..., Any], sets: list[list[Any]], flush: int, block: int = 0, duty: int = 0
) -> float:
    """Median seconds; a negative flush also copies each output away after its event.

    After every `block` calls the GPU idles for 5 ms, and then `duty` flushes come first.
    """
    scratch = torch.empty(max(1, abs(flush)), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(model(*sets[0]))
    marks = []
    for call in range(CALLS + 10):
        if block and call % block == 0:
            torch.cuda.synchronize()
            time.sleep(0.005)
            for _ in range(duty):
                scratch.zero_()
        if flush:
            scratch.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        output = model(*sets[call % len(sets)])
        end.record()
        if flush < 0:
            target.copy_(output)
        marks.append((begin, end))
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in marks[10:]) * 1e-3


if __name__ == "__main__":
    sys.exit(main())
