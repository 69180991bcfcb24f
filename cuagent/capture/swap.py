"""Time the user's script with the original module, and with the kernel in place of the module.

The script runs four times in new processes, alternately without and with the kernel. As in an
exported package, the kernel runs for calls without gradients, in the recorded mode, on shapes where
it was accepted. The original module runs for all other calls.
Not covered: modules that return objects which contain tensors, and arguments with tensors inside
containers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.capture.shapes import ShapesResult

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.task import Task

PAIRS = 2
"""Number of pairs of runs of the script: one run without the kernel and one with it."""


class SwapRefused(Exception):
    """Error: the script cannot be timed with the kernel. The message is one line."""


@dataclass(frozen=True)
class ScriptTiming:
    """Wall times of the user's script without the kernel (`before`) and with it (`after`), one for
    each run.

    `before_s`, `after_s`: seconds of the script's steps. `whole_...`: seconds of the whole script.
    """

    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    whole_before_s: tuple[float, ...]
    whole_after_s: tuple[float, ...]
    swapped: int
    """Number of calls in which the kernel ran, in the last run with the kernel."""
    calls: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the measured times as lines of text; each time is a range over the runs."""
        before, after = statistics.median(self.before_s), statistics.median(self.after_s)
        whole = [statistics.median(x) for x in (self.whole_before_s, self.whole_after_s)]
        apart = min(self.before_s) > max(self.after_s) or min(self.after_s) > max(self.before_s)
        ratio = f"{before / after:.2f}x" if apart else "the ranges overlap: no difference shown"
        return [
            f"measured, {len(self.before_s)} runs each: the script's steps took "
            f"{_range(self.before_s)} before and {_range(self.after_s)} after "
            f"({ratio}), the whole script {whole[0]:.3g} s and {whole[1]:.3g} s",
            f"the kernel ran in {self.swapped} of {self.calls} calls"
            + ("" if self.swapped else "; calls with gradients keep the original module"),
        ]


def time_swapped(
    task: Task, manifest: dict[str, Any], attempt: Attempt, found: ShapesResult
) -> ScriptTiming:
    """Time the script of a captured task without and with the kernel of `attempt`. Raises
    SwapRefused.

    `found`: results of the attempt on each shape; the kernel is used only for covered shapes.
    """
    covered = {shape.task for shape in found.shapes if shape.covered}
    shapes = [shape for shape in manifest["shapes"] if shape["task"] in covered]
    if not shapes:
        raise SwapRefused("the kernel is used for none of its shapes")
    if not manifest["swappable"]:
        raise SwapRefused("the module's arguments or result hold objects around tensors")
    if not Path(manifest["script"]).is_file():
        raise SwapRefused(f"{manifest['script']} is not there")
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="cuagent-swap-") as folder:
        attempt.write(Path(folder, "candidate"))
        for number in range(2 * PAIRS):
            with_kernel = number % 2 == 1
            runs[with_kernel].append(_run(manifest, shapes, folder, with_kernel=with_kernel))

    def times(with_kernel: bool, name: str) -> tuple[float, ...]:
        return tuple(float(answer[name]) for answer in runs[with_kernel])

    last = runs[True][-1]
    return ScriptTiming(
        times(False, "window_s"),
        times(True, "window_s"),
        times(False, "script_s"),
        times(True, "script_s"),
        last["swapped"],
        last["target_calls"],
    )


def _run(
    manifest: dict[str, Any], shapes: Sequence[dict[str, Any]], folder: str, *, with_kernel: bool
) -> dict[str, Any]:
    answer = Path(folder, "answer.json")
    answer.unlink(missing_ok=True)
    order = {
        "script": manifest["script"],
        "arguments": manifest["arguments"],
        "module": manifest["module"],
        "answer": str(answer),
        "swap": {
            "candidate": str(Path(folder, "candidate", "model_new.py")) if with_kernel else None,
            "shapes": shapes,
            "positional": manifest["positional"],
            "named": manifest["named"],
        },
    }
    file = Path(folder, "order.json")
    file.write_text(json.dumps(order))
    command = [sys.executable, "-P", "-m", "cuagent.capture.launch", str(file)]
    folder_of = manifest["cwd"] if Path(manifest["cwd"]).is_dir() else str(Path.cwd())
    done = subprocess.run(command, cwd=folder_of, capture_output=True, text=True, check=False)
    if not answer.is_file():
        raise SwapRefused(f"its process ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(answer.read_text())
    if found["problem"]:
        raise SwapRefused(found["problem"])
    if found["code"]:
        which = "with the kernel" if with_kernel else "without the kernel"
        raise SwapRefused(f"the script failed {which}: {found['failure']}")
    return found


def _range(seconds: Sequence[float]) -> str:
    low, high = min(seconds), max(seconds)
    return f"{low:.3g} s" if low == high else f"{low:.3g} to {high:.3g} s"
