"""What the seven scripts share: options, the package under test, time, saved results."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from typing import Any

import torch


def options(steps: int) -> argparse.Namespace:
    """Return the options of a script; `steps` is the default number of timed steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--package", help="exported package that optimizes the model")
    parser.add_argument("--save", help="file for the results, to compare two runs")
    found = parser.parse_args()
    torch.manual_seed(0)
    return found


def optimized(model: Any, given: argparse.Namespace) -> Any:
    """Apply the package, if one was named."""
    if given.package:
        importlib.import_module(given.package).optimize_(model)
    return model


def finished(step: Callable[[int], Any], given: argparse.Namespace) -> None:
    """Run the steps, the first of them untimed; print the time and save what they returned.

    Times are of the wall and of the process, in seconds a step; the least and the median.
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
