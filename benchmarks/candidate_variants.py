"""Time variants of the expert's candidates of some layers and blocks on a GPU, side by side.

    python benchmarks/candidate_variants.py [--seconds S] [--jobs N] [--json FILE] [CASE ...]

Each case is a process that compiles everything before it uses the GPU; one process measures at the
same time. Arms are eager, the default torch.compile and candidates with different options, in
alternation, all under torch's default settings. A figure is the median of CUDA events around one
call, with the L2 cache flushed before it, and for short calls also the wall time of a call in a
loop. Errors are relative to fp64 on the first sample. The program also prints the kernels of eager
and of each candidate, with their times by the profiler. There is no verdict: the inputs are always
the same.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from candidate_cases import CASES, Case

ROUNDS, LOOPS = 15, 50
SHORT_MS = 1.0
"""Time of a call in milliseconds below which its wall time is printed too."""
FLUSH_BYTES = 192 << 20


def main() -> None:
    """Run each case in a process, and print its results when the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help="measure the only case here")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.cases[0])), flush=True)
        return
    started, waiting = time.monotonic(), list(given.cases)
    running: dict[str, subprocess.Popen[str]] = {}
    found: dict[str, Any] = {}
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile() as lock:
        environment["CASE_LOCK"] = lock.name
        while (waiting or running) and time.monotonic() - started < given.seconds:
            while waiting and len(running) < given.jobs:
                name = waiting.pop(0)
                command = [sys.executable, __file__, "--one", name]
                running[name] = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=environment,
                )  # fmt: skip
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    found[name] = _result(process)
                    print("\n".join(_lines(name, found[name])), flush=True)
                    if given.json is not None:
                        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
            time.sleep(0.1)
        for name, process in running.items():
            process.kill()
            print(f"{name}: not ready in time")
    print(f"not started: {', '.join(waiting) or 'none'}; {time.monotonic() - started:.0f} s")


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": errors.strip()[-600:]}


def _lines(name: str, found: dict[str, Any]) -> list[str]:
    """Return the lines of text that report a case."""
    if "failed" in found:
        return [f"{name}: {found['failed']}"]
    lines = [f"{name}: {found['title']}"]
    base = found["arms"].get("compile", {}).get("ms")
    for arm, values in found["arms"].items():
        if "failed" in values:
            lines.append(f"  {arm:14} {values['failed']}")
            continue
        wall = f" wall {values['wall_ms']:.3f}" if "wall_ms" in values else ""
        ratio = f" {base / values['ms']:5.2f}x" if base else ""
        kernels = "; ".join(f"{k[:46]} {ms * 1e3:.0f}" for k, ms in values["kernels"][:4])
        line = f"  {arm:14} {values['ms']:8.3f}{ratio}{wall}  error {values['error']:.1e}"
        lines.append(f"{line} | {kernels}")
    return lines


def measured(name: str) -> dict[str, Any]:
    """Time all arms of one case in this process; return its title and the figures of each arm."""
    case, record = CASES[name], {"title": CASES[name].title, "arms": {}}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        module, path = _task(case, Path(folder))
        torch.manual_seed(0)
        model = module.Model().eval().cuda()
        inputs = [t.cuda() for t in module.get_inputs()]
        with exclusive_lock():  # only one sample is computed, so little memory is used
            exact = module.Model().eval().double().cuda()
            exact.load_state_dict(model.state_dict())
            right = exact(*[t[:1].double() for t in inputs])
            torch.cuda.empty_cache()
        calls: dict[str, Any] = {"eager": model, "compile": torch.compile(model, dynamic=False)}
        for arm, options in case.variants.items():
            try:
                made = _candidate(path, options, Path(folder) / arm.replace(" ", "_"))
                calls[arm] = made if made is None else _loaded(made, model)
            except Exception as error:  # noqa: BLE001 - the other arms go on
                record["arms"][arm] = {"failed": f"{type(error).__name__}: {str(error)[-300:]}"}
        _measure(calls, inputs, right, record["arms"])
    return record


def _measure(
    calls: dict[str, Any], inputs: list[torch.Tensor], right: torch.Tensor, arms: dict[str, Any]
) -> None:
    ready: dict[str, Any] = {}
    for arm, call in calls.items():
        if call is None:
            arms[arm] = {"failed": "no candidate"}
            continue
        try:
            value = call(*inputs)
            call(*inputs)
            error = float((value[:1].double() - right).norm() / right.norm())
            arms[arm] = {"error": error, "kernels": []}
            ready[arm] = call
            del value
        except Exception as error:  # noqa: BLE001 - the other arms go on
            arms[arm] = {"failed": f"{type(error).__name__}: {str(error)[-300:]}"}
    torch.cuda.synchronize()
    with exclusive_lock():
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        times: dict[str, list[float]] = {arm: [] for arm in ready}
        for _ in range(ROUNDS):
            for arm, call in ready.items():
                times[arm].append(event_ms(call, inputs, flush))
        for arm, call in ready.items():
            arms[arm]["ms"] = sorted(times[arm])[ROUNDS // 2]
            if arms[arm]["ms"] < SHORT_MS:
                arms[arm]["wall_ms"] = _wall_ms(call, inputs)
            if arm != "compile":
                arms[arm]["kernels"] = longest_kernels(call, inputs)
        del flush
    torch.cuda.empty_cache()


def event_ms(call: Any, inputs: list[torch.Tensor], flush: torch.Tensor) -> float:
    """Return the milliseconds of a call by CUDA events, after `flush` was overwritten."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    call(*inputs)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _wall_ms(call: Any, inputs: list[torch.Tensor]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(LOOPS):
        call(*inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / LOOPS


def longest_kernels(call: Any, inputs: list[torch.Tensor]) -> list[tuple[str, float]]:
    """Return (name, milliseconds) of the up to 12 longest kernels of a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(3):
                call(*inputs)
            torch.cuda.synchronize()
    except (RuntimeError, AssertionError) as error:
        return [(f"no profile: {error}"[:80], 0.0)]
    rows = [(row.key, row.self_device_time_total / 3e3) for row in trace.key_averages()]
    return sorted(rows, key=lambda row: -row[1])[:12]


def _task(case: Case, folder: Path) -> tuple[Any, Path]:
    path = folder / "task.py"
    path.write_text(case.text, encoding="utf-8")
    return import_file(path), path


def _candidate(path: Path, options: Any, folder: Path) -> Any:
    """Return the imported module of the expert's candidate for a task file; None if there is no
    candidate."""
    from cuagent.expert.candidate import make_candidate
    from cuagent.expert.capture.subject import open_subject
    from cuagent.task import load_task

    made = make_candidate(open_subject(load_task(f"{path}:Model", device="cuda")), options)
    if made is None:
        return None
    for name, content in made.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return import_file(folder / "model_new.py")


def _loaded(module: Any, model: torch.nn.Module) -> torch.nn.Module:
    new = module.ModelNew().eval().cuda()
    new.load_state_dict(model.state_dict())
    return new


def import_file(path: Path) -> Any:
    """Import a Python file under a unique name, and return the module."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def exclusive_lock() -> Iterator[None]:
    """Context in which only this process uses the GPU, among those with the file CASE_LOCK."""
    with Path(os.environ.get("CASE_LOCK", os.devnull)).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
