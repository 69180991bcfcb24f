"""Time the user's script with the original module, and with the kernel in place of the module.

The script runs four times in new processes, alternately without and with the kernel. The captured
module is changed in place by the package that `cuagent export` writes, so its calls run as with
the package: the kernel for accepted shapes, with gradients if its own backward was
verified; the original module for all other calls. Not covered: calls that a package cannot repeat;
other modules of the same class keep their code.
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

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judgement import Judgement
    from cuagent.package import Captured
    from cuagent.task import Task

PACKAGE = "cuagent_swapped"
"""Name of the exported package in the script's process."""
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
    compiled: bool = False
    """True if the script uses torch.compile, which is switched off in all runs."""
    trains: bool = False
    """True if the kernel has its own verified backward."""

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
            f"the kernel ran in {self.swapped} of {self.calls} calls{self._missing()}",
            *(["the script uses torch.compile; it was timed without it"] if self.compiled else []),
        ]

    def _missing(self) -> str:
        """Return why the kernel did not run, for a kernel without a backward; else ""."""
        if self.swapped or self.trains:
            return ""
        return "; where gradients are wanted your module runs: optimize with --backward"


def time_swapped(
    task: Task,
    manifest: dict[str, Any],
    attempt: Attempt,
    judgement: Judgement,
    captured: Captured,
) -> ScriptTiming:
    """Run the script of a captured task without and with an accepted attempt. Raises SwapRefused.

    `captured` has the shapes on which the attempt was accepted, besides that of the task.
    """
    from cuagent.package import export

    if manifest.get("objects") or captured.call is None:
        named = ", ".join(manifest.get("objects", ())) or "its calls"
        raise SwapRefused(f"a package cannot repeat its calls: {named}")
    if not _names_script(manifest):
        raise SwapRefused("the manifest of the captured folder does not name the script")
    if not Path(manifest["script"]).is_file():
        raise SwapRefused(f"{manifest['script']} is not there")
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="cuagent-swap-") as folder:
        export(attempt, task, judgement, Path(folder, PACKAGE), captured=captured)
        for number in range(2 * PAIRS):
            with_kernel = number % 2 == 1
            runs[with_kernel].append(_run(manifest, folder, with_kernel=with_kernel))

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
        compiled=bool(last["compiled"]),
        trains=bool(task.step),
    )


def _names_script(manifest: dict[str, Any]) -> bool:
    """Return True if the manifest has the script, its folder and its arguments as text."""
    arguments = manifest.get("arguments")
    return (
        all(isinstance(manifest.get(name), str) for name in ("script", "cwd"))
        and isinstance(arguments, list)
        and all(isinstance(argument, str) for argument in arguments)
    )


def _run(manifest: dict[str, Any], folder: str, *, with_kernel: bool) -> dict[str, Any]:
    answer = Path(folder, "answer.json")
    answer.unlink(missing_ok=True)
    order = {
        "script": manifest["script"],
        "arguments": manifest["arguments"],
        "module": manifest["module"],
        "answer": str(answer),
        "swap": {"folder": folder if with_kernel else None, "package": PACKAGE},
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
