"""Compare the ladder's ratios with those of an independent timing by CUDA events.

    python benchmarks/ladder_agreement.py --problems FOLDER [--out docs/measurements/ladder.json]

FOLDER holds problem files of the KernelBench form (level1/*.py, ...), which are not part of this
repository. For each problem the ladder times eager and some rungs (in separate processes, by two
clocks). Then plain events time the same rungs in this process: the L2 cache is overwritten before
each call, inputs rotate, rungs alternate call by call in random order, and the medians count. The
compared figures are the ratios of eager's time to a rung's. Needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cuagent.arms import COMPILE, EAGER
from cuagent.measure.ladder import time_rungs
from cuagent.measure.timing.surroundings import compiled_graphs
from cuagent.task import Device, Task, TaskError, TorchSettings, load_task, open_reference
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError

RUNGS = {Device.CUDA: (EAGER, COMPILE, f"{EAGER}+tf32"), Device.CPU: (EAGER, COMPILE)}
WITHIN = 0.03
"""Largest accepted relative difference of a ratio."""
WARM_S = 45.0
"""Time limit in seconds for compiling one problem in advance."""
SMALL_BYTES, FEW_MODULES = 256 << 20, 40
"""Limits of a small problem: bytes of inputs, weights and output together, and number of
submodules."""
COMPILE_ONE = """
import sys, torch
from cuagent.task import load_task, open_reference
reference = open_reference(load_task(sys.argv[1], device=sys.argv[2]))
model = reference.model(0)
model.compile()
torch.set_grad_enabled(False)
model(*reference.inputs(0))
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no problem after this time"
    )
    parser.add_argument("--warm", action="store_true", help="only fill torch.compile's cache")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.warm:
        print(warm(problems(options.problems), Device.CUDA), "compiled")
        return 0
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for path in problems(options.problems):
        if time.perf_counter() - started > options.seconds:
            break
        rows.append(compared(path, Device.CUDA))
        print(json.dumps(rows[-1]), flush=True)
    print(summary(rows))
    if options.out:
        options.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=1))
    return 0


def problems(folder: Path) -> list[Path]:
    """Return all problem files below a folder, sorted by name."""
    return sorted(folder.rglob("*.py"))


def selected(checkout: Path, limit: int) -> list[Path]:
    """Return up to `limit` small problems, evenly spread over KernelBench's levels 1 to 3."""
    small = [path for path in sorted(checkout.glob("KernelBench/level[1-3]/*.py")) if _small(path)]
    spread = (
        {round(i * (len(small) - 1) / max(1, limit - 1)) for i in range(limit)} if small else ()
    )
    return [small[i] for i in sorted(spread)]


def _small(path: Path) -> bool:
    """Return True if a problem has few bytes and submodules, which a call on meta tensors
    determines."""
    source: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    try:
        with torch.device("meta"), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            exec(compile(path.read_text(), str(path), "exec"), source)
            inputs = source["get_inputs"]()
            model = source["Model"](*source["get_init_inputs"]())
            parts = list(model.modules())
            # On meta tensors a recurrent network loops for seconds.
            if len(parts) > FEW_MODULES or any(isinstance(x, torch.nn.RNNBase) for x in parts):
                return False
            moved = [*inputs, *model.state_dict().values(), model(*inputs)]
    except Exception:  # noqa: BLE001 - a stranger's file
        return False
    return sum(x.nbytes for x in moved if isinstance(x, torch.Tensor)) <= SMALL_BYTES


def differences(rows: list[dict[str, Any]]) -> list[float]:
    """Return the relative differences between the ladder's ratios and those by CUDA events, of all
    rows."""
    return [abs(x["off"]) for row in rows for x in row.get("rungs", {}).values()]


def summary(rows: list[dict[str, Any]]) -> str:
    """Return a one-line summary of the differences in all rows."""
    off = differences(rows)
    if not off:
        return "no ratio was compared"
    within = sum(x <= WITHIN for x in off)
    return f"{within} of {len(off)} ratios within {WITHIN:.0%}, median {median(off):.2%}"


def compared(path: Path, device: Device) -> dict[str, Any]:
    """Time one problem by the ladder and by a plain clock; return the row, which has an `error` if
    this failed."""
    try:
        return _compare(path, device)
    except (TaskError, RuntimeError, MemoryError, ForkServerError) as error:
        return {"problem": path.name, "error": str(error)[:200]}
    finally:
        gc.collect()
        if device is Device.CUDA:
            torch.cuda.empty_cache()
        torch._dynamo.reset()


def warm(paths: list[Path], device: Device) -> int:
    """Compile the reference of each problem in advance, several in parallel, to fill the cache that
    the ladder's processes use.

    Returns the number of references that compiled. This process uses the same cache from now on.
    """
    caches = {k: v for k, v in compiled_graphs().items() if k.endswith("_CACHE_DIR")}
    os.environ.update(caches)

    def one(path: Path) -> bool:
        argv = [sys.executable, "-c", COMPILE_ONE, str(path), device.value]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(argv, capture_output=True, timeout=WARM_S, check=False)
            return done.returncode == 0
        return False

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        return sum(pool.map(one, paths))


def _compare(path: Path, device: Device) -> dict[str, Any]:
    task = load_task(path, device=device.value)
    with Referee(task) as referee:
        found = time_rungs(referee, only=RUNGS[device], fresh=True)
    if device is Device.CUDA:
        torch.cuda.empty_cache()
    plain = _plain(task)
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


def _plain(task: Task) -> dict[str, float]:
    """Return the median seconds of a call of each rung in this process, by CUDA events (on a CPU by
    the clock)."""
    on_cuda = task.device is Device.CUDA
    reference = open_reference(task)
    scratch = torch.empty(1 << 28 if on_cuda else 0, dtype=torch.uint8, device=task.device.value)
    sets = [reference.inputs(seed) for seed in range(3)]
    models = {}
    with torch.no_grad():
        for name in RUNGS[task.device]:
            _prepare(name)
            model = reference.model(0)
            if name.startswith(COMPILE):
                torch._dynamo.reset()
                model.compile()
            for arguments in sets:
                model(*arguments)
            models[name] = model
        times: dict[str, list[Callable[[], float]]] = {name: [] for name in models}
        wait = torch.cuda.synchronize if on_cuda else (lambda: None)
        wait()
        started = time.perf_counter()
        call = 0
        while call < 25 or (call < 80 and time.perf_counter() - started < 1.5):
            # The order is random, because the call after a pause is up to 4 % slower.
            for name in random.sample(list(models), len(models)):
                _prepare(name)
                scratch.zero_()
                timed = partial(models[name], *sets[call % len(sets)])
                times[name].append(_clocked(timed, on_cuda))
            wait()
            call += 1
    return {name: median(read() for read in elapsed) for name, elapsed in times.items()}


def _clocked(call: Callable[[], Any], on_cuda: bool) -> Callable[[], float]:
    """Run `call` once; return a function that returns its seconds, to be called after a
    synchronization."""
    if not on_cuda:
        started = time.perf_counter()
        call()
        elapsed = time.perf_counter() - started
        return lambda: elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    return lambda: 1e-3 * begin.elapsed_time(end)


def _prepare(name: str) -> None:
    settings = TorchSettings()
    (settings.with_tf32() if name.endswith("+tf32") else settings).apply()


if __name__ == "__main__":
    sys.exit(main())
