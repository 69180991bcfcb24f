"""Functions that the seven example scripts share: options, the package to test, timing, saved
results."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from typing import Any

import torch


def options(steps: int) -> argparse.Namespace:
    """Seed torch and return the command-line options of a script; `steps`: default number of timed
    steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--package", help="exported package that optimizes the model")
    parser.add_argument("--save", help="file for the results, to compare two runs")
    found = parser.parse_args()
    torch.manual_seed(0)
    return found


def optimized(model: Any, given: argparse.Namespace) -> Any:
    """Return the model, changed in place by the package that the option `--package` names, if
    given."""
    if given.package:
        importlib.import_module(given.package).optimize_(model)
    return model


def finished(step: Callable[[int], Any], given: argparse.Namespace) -> None:
    """Run two untimed steps and then the timed ones; print the times, and save the results if
    `--save` is given.

    `step` is called with its number. The printed times are [smallest, median] of the wall time and
    of the process time, in seconds per step.
    """
    wall, busy, results = [], [], []
    for number in range(given.steps + 2):
        begin = time.perf_counter(), time.process_time()
        results.append(step(number))
        if given.device == "cuda":
            torch.cuda.synchronize()
        if number > 1:
            wall.append(time.perf_counter() - begin[0])
            busy.append(time.process_time() - begin[1])
    if given.save:
        torch.save(results, given.save)
    times = {
        name: [round(min(t), 6), round(sorted(t)[len(t) // 2], 6)]
        for name, t in (("wall_s", wall), ("process_s", busy))
    }
    print(json.dumps(times))
