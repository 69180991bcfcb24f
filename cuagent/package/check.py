"""Compare with the original module: `python check.py [ORIGINAL.py] [--tolerance 1e-2] [--time]`.

This file travels with an exported package and does not import cuagent. In an installed package it
is `python -m NAME.check`. `--time` also times both in turn for a few seconds. If the kernel is
slower on this machine, the package runs the original here from then on. ORIGINAL.py is a file with
the reference class; the default is `reference.py` in this folder. Constructor arguments and inputs
come from `get_init_inputs` and `get_inputs` of `inputs.py` in this folder if it defines them, else
from the original. Exit code 0: all outputs agree; 1: they differ; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
REFERENCE = "reference.py"
VERIFIED = "model_new_verified"
WARM_UP, FEWEST = 5, 11
TIMED_S, BLOCK_S = 3.0, 0.01
"""Total seconds of timing, and seconds of one timed block."""
INPUTS = "inputs.py"


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description="Compare with the original module.")
    parser.add_argument("original", nargs="?", type=Path, default=HERE / REFERENCE)
    parser.add_argument(
        "--tolerance", type=float, help="absolute and relative; default 0.01, for bfloat16 0.05"
    )
    parser.add_argument("--time", action="store_true", help="time both, in a few seconds")
    options = parser.parse_args()
    facts = json.loads((HERE / "task.json").read_text())
    if not options.original.is_file():
        print(f"{options.original} not found: name a file with {facts['entry']} and get_inputs()")
        return 2
    if facts["device"] == "cuda" and not torch.cuda.is_available():
        print("this package needs a CUDA device, and torch finds none")
        return 2
    try:
        original = _module("original", options.original)
    except ImportError as failed:
        print(f"{options.original}: {failed}; name a copy of the original next to its imports")
        return 2
    package = _module(facts["name"], HERE / "__init__.py")
    given = _module("given_inputs", HERE / INPUTS) if (HERE / INPUTS).is_file() else original
    get_inputs = getattr(given, "get_inputs", None) or original.get_inputs
    args, named = _init(given if hasattr(given, "get_init_inputs") else original)
    if options.time and "rung" not in facts:
        _record(facts, None)  # an earlier result must not keep the kernel from running
    torch.manual_seed(0)
    reference = getattr(original, facts["entry"])(*args, **named).to(facts["device"]).eval()
    make = package.ModelNew if "rung" not in facts else getattr(original, facts["entry"])
    candidate = make(*args, **named).to(facts["device"]).eval()
    _fill(reference)
    candidate.load_state_dict(reference.state_dict())
    if "rung" in facts:  # the package has no kernel: it runs the original module with a rung
        candidate = package.faster(candidate)
    worst = 0.0
    for seed in SEEDS:
        torch.manual_seed(seed)
        try:
            inputs = [_to(value, facts["device"]) for value in get_inputs()]
        except TypeError:
            if options.original.parent != HERE:
                raise
            print(
                f"{facts['name']}: its inputs were recorded and are no part of the package; name "
                "the captured task, such as captured/NAME/task.py"
            )
            return 2
        with torch.no_grad():
            error = _error(reference(*inputs), candidate(*inputs), options.tolerance)
            reason = getattr(candidate, "why_original", lambda *_: "")(*inputs)
        print(f"seed {seed}: largest error is {error:.3g} times the tolerance")
        if reason:
            print(f"  the original ran, not the kernel: {reason}")
        worst = max(worst, error)
    print("agrees" if worst <= 1 else "DIFFERS")
    if options.time and worst <= 1:
        if reason:
            print("not timed: the original ran, not the kernel")
        else:
            _time(facts, reference, candidate, inputs)
    return int(not worst <= 1)


def _fill(module: Any) -> None:
    """Fill parameters and buffers with random numbers, if all of them are zero.

    A package holds no weights, so the weights of a captured module are zeros here. With zeros a
    wrong kernel could pass.
    """
    import torch

    state = [t for t in module.state_dict().values() if t.is_floating_point() and t.numel()]
    if any(bool(tensor.any()) for tensor in state):
        return
    for tensor in state:
        if tensor.ndim > 1:
            tensor.copy_(torch.randn(tensor.shape) * tensor[0].numel() ** -0.5)
        else:
            tensor.copy_(0.5 + torch.rand(tensor.shape))


def _time(facts: dict[str, Any], reference: Any, candidate: Any, inputs: list[Any]) -> None:
    """Time both modules in alternation, print the ratio, and record it for this machine."""
    import torch

    def block(module: Any, calls: int) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            for _ in range(calls):
                module(*inputs)
            if facts["device"] == "cuda":
                torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    modules = (reference, candidate)
    once = [min(block(module, 1) for _ in range(WARM_UP)) for module in modules]
    calls = max(1, round(BLOCK_S / max(*once, 1e-9)))
    end = time.monotonic() + TIMED_S
    pairs: list[tuple[float, float]] = []
    while time.monotonic() < end or len(pairs) < FEWEST:
        turn = [0, 1] if len(pairs) % 2 else [1, 0]
        taken = {n: block(modules[n], calls) for n in turn}
        pairs.append((taken[0], taken[1]))
    ratios = sorted(old / new for old, new in pairs)
    median = statistics.median(ratios)
    # Order statistics bound the median with 95 % confidence (binomial, normal approximation).
    half = 0.98 * len(ratios) ** 0.5
    low = ratios[max(0, math.floor(len(ratios) / 2 - half))]
    high = ratios[min(len(ratios) - 1, math.ceil(len(ratios) / 2 + half))]
    times = [statistics.median(pair[n] for pair in pairs) * 1e6 for n in (0, 1)]
    print(
        f"original {times[0]:.1f} us, package {times[1]:.1f} us: {median:.3f}x "
        f"[{low:.3f}, {high:.3f}]"
    )
    if "rung" not in facts:
        _record(facts, median)
        if median < 1:
            print("slower on this machine: from now on the package runs the original here")


def _record(facts: dict[str, Any], speedup: float | None) -> None:
    """Store the speedup for this machine; None deletes an earlier result."""
    machine = importlib.import_module(f"{facts['name']}.{VERIFIED}.machine")
    here = machine.machine(facts["device"])
    path = machine.record_path(HERE / VERIFIED, here)
    try:
        if speedup is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**here, "speedup": speedup}, indent=1) + "\n")
    except OSError as error:
        print(f"the result cannot be stored ({error}); the package does not use it")


def _module(name: str, path: Path) -> ModuleType:
    folder = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


def _init(module: ModuleType) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments of the constructor from `get_init_inputs`.

    It may return a list of arguments, a dict of named ones, or [list, dict].
    """
    given = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    match given:
        case dict():
            return [], given
        case [list() | tuple() as args, dict() as named]:
            return [*args], named
    return [*given], {}


def _to(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {key: _to(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        moved = [_to(item, device) for item in value]
        return moved if isinstance(value, list) else tuple(moved)
    return value.to(device) if hasattr(value, "to") else value


def _error(expected: Any, got: Any, tolerance: float | None) -> float:
    """Return the largest |expected - got| / (tolerance * (1 + |expected|)).

    Without a `tolerance` the default of the dtype applies. The error is infinite if structure,
    shape or dtype differ.
    """
    if isinstance(expected, tuple | list):
        if len(expected) != len(got):
            return float("inf")
        pairs = zip(expected, got, strict=True)
        return max((_error(a, b, tolerance) for a, b in pairs), default=0.0)
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            return float("inf")
        return max((_error(v, got[k], tolerance) for k, v in expected.items()), default=0.0)
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return float("inf")
    a, b = expected.double(), got.double()
    tolerance = tolerance or (0.05 if str(expected.dtype) == "torch.bfloat16" else 0.01)
    ratio = (a - b).abs() / (tolerance * (1 + a.abs()))
    # Equal infinities agree, and two NaNs agree; one NaN is a difference.
    same = (a == b) | (a.isnan() & b.isnan())
    ratio = ratio.masked_fill(same, 0.0).nan_to_num(nan=float("inf"))
    return float(ratio.max()) if ratio.numel() else 0.0


if __name__ == "__main__":
    sys.exit(main())
