"""Judge the expert's first candidate of some tasks, and time it against eager and torch.compile.

    python benchmarks/judged_candidates.py [--device cuda|cpu] [--jobs N] [--untimed] [--json FILE]
        TASK ...

TASK is a task file. Each task has its own process; on a GPU, `--jobs` of them share the device, and
only one is timed at the same time. The program prints for each task the verdict, the largest error
as a share of its bound, the speedups over eager and torch.compile with their 95 % intervals (quick
timing), and the seconds that the judgement took. With `--untimed` it only verifies.
Not covered, unlike in `cuagent bench`: a search, other rungs than the default torch.compile.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cuagent.attempt import Attempt
from cuagent.bench.lock_file import lock_file
from cuagent.device_lock import DeviceLock
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import open_subject
from cuagent.judge import LocalJudge
from cuagent.measure.roofline.ceilings import describe
from cuagent.task import load_task
from cuagent.timing import Effort


def main() -> None:
    """Judge each task, print a line for it, and write all records to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--untimed", action="store_true", help="verify only")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        effort = None if given.untimed else Effort.QUICK
        futures = [
            pool.submit(judged, task, given.device, given.jobs > 1, effort) for task in given.tasks
        ]
        for future in as_completed(futures):
            found.append(future.result())
            print(line(found[-1]), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def judged(path: str, device: str, shared: bool, effort: Effort | None) -> dict[str, Any]:
    """Judge the expert's first candidate for one task file; return its record, with a `reason` if
    it failed.

    `shared`: True if other tasks use the device at the same time. `effort`: of the timing; None
    for a verdict without timing.
    """
    started = time.monotonic()
    record: dict[str, Any] = {"task": Path(path).stem}
    try:
        record |= _judged(path, device, shared, effort)
    except Exception as error:  # noqa: BLE001 - the process boundary: the other tasks go on
        record["reason"] = f"{type(error).__name__}: {error}"
    return record | {"seconds": round(time.monotonic() - started, 1)}


def _judged(path: str, device: str, shared: bool, effort: Effort | None) -> dict[str, Any]:
    task = load_task(path, device=device)
    record: dict[str, Any] = {"device": describe(task.device), "kernels": []}
    candidate = make_candidate(open_subject(task), Options())
    if candidate is None:
        return record | {"reason": "no candidate"}
    record["kernels"] = list(candidate.kernels)
    on_gpu = task.device == "cuda"
    lock = lock_file(os.environ.get("CUDA_VISIBLE_DEVICES", "0")) if shared and on_gpu else None
    with LocalJudge(task, device_lock=DeviceLock(lock)) as judge:
        judgement = judge.judge(Attempt(tuple(candidate.files.items())), effort)
    verdict, timing = judgement.verdict, judgement.timing
    record |= {
        "accepted": verdict.accepted,
        "reason": verdict.reason.value,
        "detail": verdict.detail,
        "worst": verdict.strict.worst if verdict.strict is not None else None,
    }
    if timing is not None:
        record["ratios"] = {
            name: {"value": r.value, "low": r.low, "high": r.high}
            for name, r in timing.ratios.items()
        }
        record["times_s"] = {arm.name: arm.median for arm in timing.arms if arm.samples}
    return record


def line(record: dict[str, Any]) -> str:
    """Return the record of one task as one line of text."""
    name, seconds = f"{record['task']:28}", f"{record['seconds']:5.0f} s"
    if not record.get("accepted"):
        return f"{name} {seconds}  {record['reason']}: {record.get('detail', '')[:200]}"
    ratios = record.get("ratios", {})
    texts = [f"{r['value']:5.2f}x [{r['low']:.2f}, {r['high']:.2f}] {n}" for n, r in ratios.items()]
    worst = f"error {record['worst']:.2f}" if record["worst"] is not None else ""
    return f"{name} {seconds}  {worst}  {'  '.join(texts)}  {', '.join(record['kernels'])[:90]}"


if __name__ == "__main__":
    main()
