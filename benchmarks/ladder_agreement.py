"""Do the ladder's ratios agree with an independent, event-based timing?

    python benchmarks/ladder_agreement.py --problems FOLDER [--out docs/measurements/ladder.json]

FOLDER holds problem files of the KernelBench form (level1/*.py, ...), which are not part of this
repository. For each, eager and some rungs are timed by the ladder (processes of their own, two
clocks) and then in this process by plain events: L2 overwritten, inputs rotated, arms interleaved
call by call, medians. Compared are the ratios eager over rung. Needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from cuagent.measure.ladder import ladder
from cuagent.task import TaskError, load_task, open_reference
from cuagent.verify.referee import Referee
from cuagent.worker.arms import COMPILE, EAGER, set_precision

RUNGS = (EAGER, COMPILE, f"{EAGER}+tf32")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after these")
    parser.add_argument("--warm", action="store_true", help="only fill torch.compile's cache")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.warm:
        return _warm(asked.problems)
    begun = time.perf_counter()
    rows = []
    for path in sorted(asked.problems.rglob("*.py")):
        if time.perf_counter() - begun > asked.seconds:
            break
        try:
            rows.append(_compare(path))
        except (TaskError, RuntimeError, MemoryError) as error:
            rows.append({"problem": path.name, "error": str(error)[:200]})
        print(json.dumps(rows[-1]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    off = [abs(x["off"]) for row in rows for x in row.get("rungs", {}).values()]
    if off:
        within = sum(x <= 0.03 for x in off)
        print(f"{within} of {len(off)} ratios within 3 %, median {median(off):.2%}")
    if asked.out:
        asked.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1))
    return 0


def _warm(problems: Path) -> int:
    """Compile everything once, several at a time.

    Into the ladder's own cache if TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR name the folders
    `inductor` and `triton` of ~/.cache/cuagent.
    """
    from concurrent.futures import ThreadPoolExecutor

    program = (
        "import sys, torch; from cuagent.task import load_task, open_reference;"
        "r = open_reference(load_task(sys.argv[1], device='cuda')); m = r.model(0); m.compile();"
        "torch.backends.cuda.matmul.allow_tf32 = False;"
        "torch.backends.cudnn.allow_tf32 = False;"
        "torch.set_grad_enabled(False); m(*r.inputs(0))"
    )

    def one(path: Path) -> int:
        return subprocess.run(
            [sys.executable, "-c", program, str(path)], env=os.environ, check=False
        ).returncode

    with ThreadPoolExecutor(6) as pool:
        print(sum(code == 0 for code in pool.map(one, sorted(problems.rglob("*.py")))), "compiled")
    return 0


def _compare(path: Path) -> dict:
    task = load_task(path, device="cuda")
    with Referee(task) as referee:
        found = ladder(referee, only=RUNGS, fresh=True)
    torch.cuda.empty_cache()
    plain = _plain(path)
    rungs = {}
    for rung in found.rungs:
        if rung.over_eager is not None and rung.name in plain and rung.name != EAGER:
            ratio = plain[EAGER] / plain[rung.name]
            rungs[rung.name] = {
                "ladder": rung.over_eager.value,
                "low": rung.over_eager.low,
                "high": rung.over_eager.high,
                "events": ratio,
                "off": rung.over_eager.value / ratio - 1,
            }
    return {
        "problem": path.name,
        "ladder_us": {rung.name: 1e6 * rung.seconds for rung in found.rungs},
        "events_us": {name: 1e6 * seconds for name, seconds in plain.items()},
        "rungs": rungs,
        "failed": {rung.name: rung.failed for rung in found.rungs if rung.failed},
        "seconds": found.seconds,
    }


def _plain(path: Path) -> dict[str, float]:
    """Median seconds of each rung by events in one process."""
    task = load_task(path, device="cuda")
    reference = open_reference(task)
    scratch = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    sets = [reference.inputs(seed) for seed in range(3)]
    models = {}
    with torch.no_grad():
        for name in RUNGS:
            _prepare(name)
            model = reference.model(0)
            if name.startswith(COMPILE):
                torch._dynamo.reset()
                model.compile()
            for arguments in sets:
                model(*arguments)
            models[name] = model
        marks: dict[str, list] = {name: [] for name in RUNGS}
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call = 0
        while call < 25 or (call < 80 and time.perf_counter() - begun < 1.5):
            for name, model in models.items():
                _prepare(name)
                scratch.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                model(*sets[call % len(sets)])
                end.record()
                marks[name].append((begin, end))
            torch.cuda.synchronize()
            call += 1
    return {n: median(a.elapsed_time(b) for a, b in m) * 1e-3 for n, m in marks.items()}


def _prepare(name: str) -> None:
    from cuagent.task import Precision

    set_precision(Precision.TF32 if name.endswith("+tf32") else Precision.MATCH)


if __name__ == "__main__":
    sys.exit(main())
