"""Functions that the seven example scripts share: options, the package to test, timing, saved
results."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WARM = 3
"""Number of untimed steps: kernels are compiled in the first, CUDA graphs are captured later."""


def options(steps: int) -> argparse.Namespace:
    """Seed torch and return the command-line options of a script; `steps`: default number of timed
    steps.

    `batches` in the result is the number of batches that the script makes.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seconds", type=float, default=0.0, help="least duration of timed steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--package", help="exported package that optimizes the model")
    parser.add_argument("--save", help="file for the results, to compare two runs")
    parser.add_argument("--double", action="store_true", help="compute in float64, as a reference")
    parser.add_argument("--lock", help="file locked from the second step on: scripts take turns")
    found = parser.parse_args()
    found.batches = found.steps + WARM
    torch.manual_seed(0)
    return found


def optimized(model: Any, given: argparse.Namespace) -> Any:
    """Return the model, changed in place by the package that the option `--package` names, or to
    float64 by `--double`."""
    if given.package:
        importlib.import_module(given.package).optimize_(model)
    return model.double() if given.double else model


def exact(x: Tensor, given: argparse.Namespace) -> Tensor:
    """Return the input in float64 if `--double` is given."""
    return x.double() if given.double else x


def finished(step: Callable[[int], Any], given: argparse.Namespace) -> None:
    """Run the untimed steps and then the timed ones; print the times, and save the results if
    `--save` is given.

    `step` is called with the number of a batch. The printed times are [smallest, median] of the
    wall time and of the process time, in seconds per step.
    """
    wall, busy, results = [], [], [step(0)]  # it compiles, for seconds and hardly on the GPU
    _wait(given)
    with locked(given.lock):
        for number in range(1, given.batches):
            result = step(number)
            _wait(given)
            if given.save:
                results.append(result)
        while len(wall) < given.steps or sum(wall) < given.seconds:
            begin = time.perf_counter(), time.process_time()
            step(WARM + len(wall) % given.steps)
            _wait(given)
            wall.append(time.perf_counter() - begin[0])
            busy.append(time.process_time() - begin[1])
    if given.save:
        torch.save(results, given.save)
    times = {
        name: [round(min(t), 7), round(sorted(t)[len(t) // 2], 7)]
        for name, t in (("wall_s", wall), ("process_s", busy))
    }
    print(json.dumps(times))


def _wait(given: argparse.Namespace) -> None:
    if given.device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def locked(path: str | None) -> Iterator[None]:
    """Context in which no other process has the lock file `path`; no lock without a path."""
    if path is None:
        yield
        return
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
