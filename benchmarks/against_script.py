"""Compare a benchmark's times of eager and torch.compile with those of a plain script.

    python benchmarks/against_script.py RESULTS.jsonl --root KERNELBENCH [--seconds S] [--out FILE]

For each problem in the results a new process runs KernelBench's file under torch's defaults: CUDA
events around each call, the L2 cache overwritten before it, median of 30 calls. "queued" calls
follow each other without a wait, as in `triton.testing.do_bench`. Before a "single" call the device
is idle, so the time contains the host's work until the first kernel. The script imports nothing of
cuagent. Run it on the machine of the benchmark, while nothing else uses the GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

SCRIPT = """
import json, runpy, sys, torch
task = runpy.run_path(sys.argv[1])
torch.manual_seed(0)
model = task["Model"](*task["get_init_inputs"]()).cuda().eval()
inputs = [x.cuda() if torch.is_tensor(x) else x for x in task["get_inputs"]()]
cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
def times(call, wait):
    spans = []
    for n in range(40):
        span = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        cache.zero_(); span[0].record(); call(*inputs); span[1].record(); spans.append(span)
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) / 1e3 for a, b in spans[10:])[15]
def both(call):
    return {"queued": times(call, False), "single": times(call, True)}
with torch.no_grad():
    found = {"eager": both(model), "compile": both(torch.compile(model))}
print(json.dumps(found))
"""
PROBLEM_S = 120
"""Time limit in seconds for one problem."""
WITHIN = 0.05
"""Largest relative difference of a time that counts as equal."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no problem after this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begun, rows = time.monotonic(), list[dict[str, Any]]()
    for line in given.results.read_text().splitlines():
        record = json.loads(line)
        times = record.get("times", {})
        measured = {arm: times.get(arm, {}).get("median_s") for arm in ("eager", "compile")}
        if None in measured.values() or time.monotonic() - begun > given.seconds:
            continue
        level, number = record["problem"].removeprefix("L").split("/")
        (path,) = given.root.rglob(f"level{level}/{number}_*.py")
        rows.append({"problem": record["problem"], "benchmark": measured} | scripted(path))
        print(json.dumps(rows[-1]), flush=True)
    print(_summary(rows))
    if given.out:
        given.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1))


def scripted(path: Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the plain script's seconds of a problem by arm, or an `error`."""
    command = [sys.executable, "-c", SCRIPT, str(path)]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBLEM_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {PROBLEM_S} s"}
    if ran.returncode:
        return {"error": ran.stderr.strip().splitlines()[-1][:200]}
    return {"script": json.loads(ran.stdout.strip().splitlines()[-1])}


def _summary(rows: list[dict[str, Any]]) -> str:
    """Return for each arm how many times agree, and the median and largest relative difference."""
    lines = []
    for arm in ("eager", "compile"):
        for kind in ("queued", "single"):
            off = [
                abs(row["benchmark"][arm] / row["script"][arm][kind] - 1)
                for row in rows
                if "script" in row
            ]
            if off:
                within = sum(x <= WITHIN for x in off)
                lines.append(
                    f"{arm}, {kind}: {within} of {len(off)} within {WITHIN:.0%}, "
                    f"median {median(off):.1%}, largest {max(off):.1%}"
                )
    return "\n".join(lines) or "nothing was compared"


if __name__ == "__main__":
    main()
