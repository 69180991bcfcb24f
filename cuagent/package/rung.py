"""Export the best rung of the ladder as a self-contained folder, if no kernel is faster than it.

The folder holds one function that applies the rung to the user's module, a check against the
original module, and the figures. Not covered: anything that needs more than torch.
Invariant: the function does exactly what was timed under the rung's name (`cuagent.worker.arms`),
with the same flags.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from cuagent.arms import COMPILE, EAGER
from cuagent.measure.ladder import Ladder, Rung
from cuagent.package import check
from cuagent.package.folder import atomic_folder, package_name, pyproject, write_original
from cuagent.package.readme import time_text, versions_text
from cuagent.task.task import Device, Precision, Task
from cuagent.timing import Effort, Ratio

MODULE = "faster.py"
ENTRY = "faster"


def export_rung(
    rung: Rung,
    ladder: Ladder,
    task: Task,
    out: Path,
    *,
    free: Ratio | None = None,
    measured: date | None = None,
) -> Path:
    """Write the package to `out` and return `out`.

    `free` is eager's time over the rung's from a later timing with an attempt, if there was one.
    `measured` is the date in the README; None stands for today. Raises ExportError if `out` is not
    empty.
    """
    with atomic_folder(out) as folder:
        name = package_name(task)
        (folder / MODULE).write_text(module_text(rung.name, task))
        (folder / "__init__.py").write_text(
            f'"""{task.entry} of {task.path.name}, with the fastest measured settings."""\n\n'
            f'from .{MODULE.removesuffix(".py")} import {ENTRY}\n\n__all__ = ["{ENTRY}"]\n'
        )
        shutil.copy(check.__file__, folder / "check.py")
        facts = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
        (folder / "task.json").write_text(json.dumps(facts | {"rung": rung.name}, indent=2) + "\n")
        write_original(task, folder)
        (folder / "pyproject.toml").write_text(pyproject(name))
        text = "\n".join(_readme(name, rung, ladder, task, free or rung.over_eager, measured))
        (folder / "README.md").write_text(text)
    return out


def module_text(name: str, task: Task) -> str:
    """Return Python text with the function that applies a rung."""
    mode, *options = name.split("+")
    body = list(_statements(mode, options, task))
    flags = any("allow_tf32" in line for line in body)
    warning = " Note: it sets TF32 for the whole process." if flags else ""
    lines = [
        f'"""Run a module with {_settings(name)}; torch only, no kernel.{warning}"""',
        "",
        "import torch",
        "",
        "",
        f"def {ENTRY}(module: torch.nn.Module) -> torch.nn.Module:",
        f'    """Apply the fastest measured settings on {task.device} and return `module`."""',
        *(f"    {line}" if line else "" for line in body),
        "    return module",
    ]
    return "\n".join(lines) + "\n"


def _statements(mode: str, options: list[str], task: Task) -> Iterator[str]:
    """Yield the statements in the order in which the worker applies the options."""
    if task.device is Device.CUDA:
        tf32 = "fp32" not in options and task.precision is not Precision.MATCH
        if tf32 or "fp32" in options:
            yield f"torch.backends.cuda.matmul.allow_tf32 = {tf32}"
            yield f"torch.backends.cudnn.allow_tf32 = {tf32}"
    if "channels_last" in options:
        yield "module = module.to(memory_format=torch.channels_last)"
    if "bf16" in options:
        yield "original_forward = module.forward"
        yield ""
        yield "def to_float32(x):"
        yield "    return x.float() if x.dtype is torch.bfloat16 else x"
        yield ""
        yield "def forward(*arguments, **named):"
        yield f'    with torch.autocast("{task.device}", torch.bfloat16):'
        yield "        output = original_forward(*arguments, **named)"
        yield "    return torch.utils._pytree.tree_map_only(torch.Tensor, to_float32, output)"
        yield ""
        yield "module.forward = forward"
    if mode == COMPILE:
        yield "module.compile()"
    elif mode != EAGER:
        yield f'module.compile(mode="{mode}")'


def _settings(name: str) -> str:
    mode, *options = name.split("+")
    modes = {EAGER: "eager PyTorch", COMPILE: "torch.compile"}
    return ", ".join([modes.get(mode, f"torch.compile, mode {mode}"), *options])


def _readme(
    name: str,
    rung: Rung,
    ladder: Ladder,
    task: Task,
    free: Ratio | None,
    measured: date | None,
) -> Iterator[str]:
    day = (measured or date.today()).isoformat()
    yield f"# {name}"
    yield ""
    yield (
        f"`{ENTRY}(module)` makes `{task.entry}` of `{task.path.name}` run with the fastest "
        f"settings measured on {task.device} without a kernel: {_settings(rung.name)}. Measured "
        f"with cuagent on {day}."
    )
    yield from ["", "## Use", "", "```"]
    yield f"pip install .     # then: from {name} import {ENTRY}; module = {ENTRY}(module)"
    yield f"python check.py {task.path.name}   # compares it with the original module"
    yield from ["```", ""]
    yield "Without an argument `check.py` uses `reference.py`, the original module."
    yield "Measured under `torch.no_grad()`."
    yield from ["", "## Speed", ""]
    yield "| settings | time | speedup over eager | 95 % interval | error against fp64 |"
    yield "|---|---|---|---|---|"
    for each in ladder.rungs:
        yield _row(each, free if each.name == rung.name else each.over_eager)
    yield ""
    machine = f"{ladder.device}{versions_text(ladder.versions)}"
    yield f"Measured on {machine}; precision {ladder.precision}."
    if ladder.effort is Effort.QUICK:
        yield "This was a quick measurement, for feedback; it is not a score of record."
    yield from ladder.notes
    yield from ["", f"Task `{task.digest[:16]}`.", ""]


def _row(rung: Rung, over: Ratio | None) -> str:
    if rung.failed or over is None:
        return f"| {rung.name} | - | - | {' '.join(rung.failed.split())[:80] or '-'} | - |"
    error = "-" if rung.error is None else f"{rung.error:.1e}"
    return (
        f"| {rung.name} | {time_text(rung.seconds)} | {over.value:.3f}x "
        f"| {over.low:.3f} to {over.high:.3f} ({over.standing}) | {error} |"
    )
