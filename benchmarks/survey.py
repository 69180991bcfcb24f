"""Time the expert's candidates of many problems next to torch's usual ways, on GPUs.

    python benchmarks/survey.py FOLDER [--levels 2,3] [--problems LIST] [--dtype bfloat16]
        [--gpus N] [--jobs N] [--seconds S] [--replay] [--json FILE]

FOLDER has problems in the format of KernelBench, in folders `level1` to `level3`, or, like
`gpu_modules`, without such folders. `--dtype` converts each float32 module and its inputs. Each
problem is a process; `--jobs` of them share a GPU. One is timed at a time, while others may compile
and make first calls. So a figure is the lower quartile of alternating rounds, by CUDA events around
one call after a flush of the L2 cache. Arms are eager and the default torch.compile, both also with
cudnn.benchmark and with channels-last weights, and candidates with different options. All are also
captured in a CUDA graph. It replays without copies of inputs, so its time is only a bound.
With `--replay` there are also a candidate that captures its graph itself, as the search's first
candidate does where launches take the time, and torch.compile's mode reduce-overhead: plain calls,
with the copies that a user gets. Autotuning is left out. Errors are relative to eager's output. The
program prints the fastest arm of both sides with its longest kernels; the file has all. There is no
verdict and no search: it shows where to work.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from candidate_variants import (
    FLUSH_BYTES,
    event_ms,
    exclusive_lock,
    import_file,
    longest_kernels,
)
from torch.utils._pytree import tree_map

from cuagent.worker.channels_last import has_channels_last, to_channels_last

ROUNDS, BUDGET_MS = 12, 1500.0
"""Rounds of a timing, and the longest time of all of them; at least 3 rounds are made."""
MEMORY_TRIES = 40
"""Tries to allocate, 2 s apart, while other problems use the GPU's memory."""

LEVEL = re.compile(r"level\d+")
"""Name of a folder of numbered problems."""

CONVERTED = """

_float32_inputs = get_inputs


class Converted(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.to(torch.{dtype})


def get_inputs():
    return [
        t.to(torch.{dtype}) if torch.is_tensor(t) and t.is_floating_point() else t
        for t in _float32_inputs()
    ]
"""
"""Text behind a problem's, with a module and inputs of another dtype. The module has a name of its
own, because the problem's text calls `super(Model, self)`."""

Call = Callable[..., Any]


def main() -> None:
    """Run each problem in a process, and print its result when the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="has folders level1 to level3 of problems, or the problems"
    )
    parser.add_argument("--levels", default="1,2,3", help="not for a folder without levels")
    parser.add_argument(
        "--problems",
        default="",
        help="such as 2/20,3/14; without levels names such as rope,dlrm; all if not given",
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=10, help="processes for each GPU")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--replay", action="store_true", help="arms that capture their own graph")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help="measure the problem here")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.folder, given.dtype, given.replay)), flush=True)
        return
    waiting = _problems(given.folder, given.levels.split(","))
    if given.problems:
        wanted = set(given.problems.split(","))
        waiting = [path for path in waiting if _name(path) in wanted]
    with tempfile.TemporaryDirectory() as folder:
        _run_all(waiting, given, Path(folder))


def _problems(folder: Path, levels: Sequence[str]) -> list[Path]:
    """Return the problems of some levels, by number, or of a folder without levels, by name."""
    if not any(LEVEL.fullmatch(path.name) for path in folder.iterdir()):
        return sorted(folder.glob("*.py"))
    return [
        path
        for level in levels
        for path in sorted(
            (folder / f"level{level}").glob("*.py"), key=lambda p: int(p.name.split("_")[0])
        )
    ]


def _name(path: Path) -> str:
    """Return level and number of a problem, such as 2/20, or the name of one without a level."""
    if LEVEL.fullmatch(path.parent.name):
        return f"{path.parent.name.removeprefix('level')}/{path.name.split('_')[0]}"
    return path.stem


def _run_all(waiting: list[Path], given: argparse.Namespace, folder: Path) -> None:
    started = time.monotonic()
    running: dict[Path, tuple[int, subprocess.Popen[str]]] = {}
    try:
        _run_until_late(waiting, running, given, folder)
    finally:
        for _, process in running.values():
            process.kill()
    for path in running:
        print(f"{_name(path)}: not ready in time")
    names = ", ".join(map(_name, waiting)) or "none"
    print(f"not started: {names}; {time.monotonic() - started:.0f} s")


def _run_until_late(
    waiting: list[Path],
    running: dict[Path, tuple[int, subprocess.Popen[str]]],
    given: argparse.Namespace,
    folder: Path,
) -> None:
    """Move problems from `waiting` to `running`, and out of it when they end, until none is left or
    the time is over."""
    started = time.monotonic()
    free = [gpu for _ in range(given.jobs) for gpu in range(given.gpus)]
    while (waiting or running) and time.monotonic() - started < given.seconds:
        while waiting and free:
            path, gpu = waiting.pop(0), free.pop(0)
            environment = os.environ | {
                "CUDA_VISIBLE_DEVICES": str(gpu), "CASE_LOCK": str(folder / f"lock{gpu}"),
                "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            out = (folder / f"{_name(path).replace('/', '_')}.out").open("w+")
            command = [sys.executable, __file__, "--one", str(path), "--dtype", given.dtype]
            command += ["--replay"] if given.replay else []
            running[path] = (
                gpu,
                subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment
                ),
            )
        for path, (gpu, process) in list(running.items()):
            if process.poll() is None:
                continue
            del running[path]
            free.append(gpu)
            found = _result(folder / f"{_name(path).replace('/', '_')}.out")
            print("\n".join(_lines(_name(path), found)), flush=True)
            if given.json is not None:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"problem": _name(path)} | found) + "\n")
        time.sleep(0.1)


def _result(file: Path) -> dict[str, Any]:
    text = file.read_text("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.startswith('{"title"')]
    return json.loads(lines[-1]) if lines else {"failed": text.strip()[-500:]}


def _lines(name: str, found: dict[str, Any]) -> list[str]:
    """Return the lines of text that report a problem."""
    if "failed" in found:
        return [f"{name}: {found['failed']}"]
    timed = {arm: v for arm, v in found["arms"].items() if "ms" in v}
    sides = {False: "torch", True: "expert"}
    best = {
        own: min(
            (arm for arm in timed if arm.startswith("own") is own),
            key=lambda arm: timed[arm]["ms"], default=None,
        )
        for own in sides
    }  # fmt: skip
    ratio = timed[best[False]]["ms"] / timed[best[True]]["ms"] if all(best.values()) else 0.0
    first = timed.get("own", {}).get("ms", 0.0)
    lines = [
        f"{name}: {found['title']} {ratio:.2f}x, first {first:.3f} ms; {found['seconds']:.0f} s"
    ]
    times = ", ".join(f"{arm} {v['ms']:.3f}" for arm, v in timed.items())
    lines.append(f"  {times}")
    lines += [f"  {arm}: {v['failed'][-150:]}" for arm, v in found["arms"].items() if "failed" in v]
    for own, arm in best.items():
        if arm is not None:
            kernels = "; ".join(f"{k[:60]} {ms * 1e3:.0f}" for k, ms in timed[arm]["kernels"][:7])
            error = timed[arm].get("error", 0.0)
            lines.append(f"  {sides[own]} {arm} error {error:.1e} | {kernels}")
    return lines


def measured(path: Path, dtype: str, replay: bool) -> dict[str, Any]:
    """Time all arms of one problem in this process; return the figures of each arm."""
    begun = time.monotonic()
    record: dict[str, Any] = {"title": path.stem, "arms": {}}
    arms = record["arms"]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        entry = "Model"
        if dtype != "float32":
            path, entry = _converted(path, dtype, Path(folder)), "Converted"
        made = dict(_candidates(path, entry, Path(folder), arms, replay))
        module = import_file(path)
        model, inputs = _until_it_fits(lambda: _model_and_inputs(module, entry))
        calls: dict[str, tuple[Call, Any, bool]] = {}
        for name, (call, given) in _opponents(model, inputs, replay).items():
            calls[name] = call, given, False
            if any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in model.modules()):
                calls[f"{name}+benchmark"] = call, given, True
        for name, candidate in made.items():
            new = candidate.ModelNew(*module.get_init_inputs()).eval().cuda()
            new.load_state_dict(model.state_dict())
            calls[name] = new, inputs, False
        _measure(calls, arms)
    record["seconds"] = time.monotonic() - begun
    return record


def _converted(path: Path, dtype: str, folder: Path) -> Path:
    """Write a task file whose module and inputs are those of `path` in another dtype."""
    target = folder / path.name
    target.write_text(path.read_text("utf-8") + CONVERTED.format(dtype=dtype), encoding="utf-8")
    return target


def _model_and_inputs(module: Any, entry: str) -> tuple[torch.nn.Module, list[Any]]:
    with torch.device("cuda"):
        torch.manual_seed(0)
        model = getattr(module, entry)(*module.get_init_inputs()).eval().cuda()
        return model, [t.cuda() if torch.is_tensor(t) else t for t in module.get_inputs()]


def _until_it_fits(make: Callable[[], Any]) -> Any:
    for _ in range(MEMORY_TRIES):
        try:
            return make()
        except RuntimeError as error:  # libraries do not raise OutOfMemoryError
            if "out of memory" not in str(error):
                raise
        torch.cuda.empty_cache()
        time.sleep(2)
    return make()


def _opponents(
    model: torch.nn.Module, inputs: list[Any], replay: bool
) -> dict[str, tuple[Call, list[Any]]]:
    found: dict[str, tuple[Call, list[Any]]] = {
        "eager": (model, inputs),
        "compile": (torch.compile(model, dynamic=False), inputs),
    }
    if has_channels_last([weight.shape for weight in model.parameters()]):
        other = to_channels_last(copy.deepcopy(model))
        found["eager+last"] = other, inputs
        found["compile+last"] = torch.compile(other, dynamic=False), inputs
    if replay:
        replayed = torch.compile(model, dynamic=False, mode="reduce-overhead")
        # A user copies results that a later call may overwrite.
        found["compile+replay"] = (lambda *a: tree_map(torch.clone, replayed(*a))), inputs
    return found


def _candidates(
    path: Path, entry: str, folder: Path, arms: dict[str, Any], replay: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the imported module of each candidate; texts are different."""
    from cuagent.expert.candidate import Options, make_candidate
    from cuagent.expert.capture.subject import open_subject
    from cuagent.task import load_task

    options = {
        "own": Options(), "own last": Options(convolutions="channels_last"),
        "own library": Options(convolutions="library"), "own every": Options(convolutions="every"),
        "own tf32": Options(tf32_few_channels=True),
        "own attention": Options(own_attention=True),
        "own attention 2": Options(own_attention=True, tiles=1),
        "own attention 3": Options(own_attention=True, tiles=2),
        "own small": Options(small_products=True),
    }  # fmt: skip
    if replay:
        options["own replay"] = Options(graph=True)
        options["own small replay"] = Options(graph=True, small_products=True)
    subject = _until_it_fits(lambda: open_subject(load_task(f"{path}:{entry}", device="cuda")))
    seen: list[dict[str, str]] = []
    attends = False
    for name, chosen in options.items():
        if "attention" in name and not attends:
            continue
        try:
            made = make_candidate(subject, chosen)
            if made is None or made.files in seen:
                continue
            attends = attends or "attention(" in made.files["model_new.py"]
            seen.append(made.files)
            own = folder / re.sub(r"\W", "_", name)
            for file, content in made.files.items():
                (own / file).parent.mkdir(parents=True, exist_ok=True)
                (own / file).write_text(content, encoding="utf-8")
            yield name, import_file(own / "model_new.py")
        except Exception as error:  # noqa: BLE001 - the other arms go on
            arms[name] = {"failed": f"{type(error).__name__}: {str(error)[-300:]}"}
    torch.cuda.empty_cache()


def _measure(calls: dict[str, tuple[Call, Any, bool]], arms: dict[str, Any]) -> None:
    """Warm up all calls, compare their outputs with eager's, and time them in alternation."""
    ready: dict[str, Call] = {}
    right: Any = None
    for name, (call, inputs, benchmark) in calls.items():

        def run(call: Call = call, inputs: Any = inputs, benchmark: bool = benchmark) -> Any:
            torch.backends.cudnn.benchmark = benchmark
            return call(*inputs)

        try:
            value = _until_it_fits(run)
            run()
            right = value if right is None else right
            arms[name] = {"error": _error(value, right), "kernels": []}
            ready[name] = run
            del value
        except Exception as error:  # noqa: BLE001 - the other arms go on
            arms[name] = {"failed": f"{type(error).__name__}: {str(error)[-300:]}"}
    torch.cuda.synchronize()
    with exclusive_lock():
        ready |= dict(_graphs(ready, arms))
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        first = {name: event_ms(run, [], flush) for name, run in ready.items()}
        rounds = max(3, min(ROUNDS, int(BUDGET_MS / sum(first.values()))))
        times: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(rounds):
            for name, run in ready.items():
                times[name].append(event_ms(run, [], flush))
        for name in ready:
            arms[name]["ms"] = sorted(times[name])[rounds // 4]
        for own in (True, False):
            side = [name for name in ready if name.startswith("own") is own]
            if side:
                best = min(side, key=lambda name: arms[name]["ms"])
                arms[best]["kernels"] = longest_kernels(ready[best], [])


def _graphs(ready: dict[str, Call], arms: dict[str, Any]) -> Iterator[tuple[str, Call]]:
    """Yield the name and the replay of each arm in a CUDA graph; note those that fail."""
    for name in (name for name in list(ready) if "replay" not in name):
        torch.backends.cudnn.benchmark = name.endswith("benchmark")
        try:
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                ready[name]()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                kept = ready[name]()
            arms[f"{name} in a graph"] = {"error": arms[name]["error"], "kernels": []}
            yield f"{name} in a graph", _replay(graph, kept)
        except Exception as error:  # noqa: BLE001 - the other arms go on
            arms[f"{name} in a graph"] = {"failed": f"{type(error).__name__}: {str(error)[-200:]}"}


def _replay(graph: torch.cuda.CUDAGraph, kept: Any) -> Call:
    def run() -> Any:
        graph.replay()
        return kept

    return run


def _error(value: Any, right: Any) -> float:
    """Return |value - right| / |right| of the first output tensor."""
    a, b = (v if torch.is_tensor(v) else next(_tensors(v)) for v in (value, right))
    return float((a.float() - b.float()).norm() / b.float().norm())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, Sequence):
        for item in value:
            yield from _tensors(item)


if __name__ == "__main__":
    main()
