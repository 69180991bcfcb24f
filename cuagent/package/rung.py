"""The best rung of the ladder as a folder that stands alone: where no kernel adds to what is free.

It holds one function that makes the user's own module run the way that was measured quickest, a
check against the module as it was, and the figures. Not covered: anything that torch cannot do by
itself. Invariant: what the function does is what was timed under the rung's name
(`cuagent.worker.arms`), with the same flags.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from cuagent.measure.ladder import Ladder, Rung
from cuagent.package import check
from cuagent.package.folder import made_whole, package_name, pyproject, write_original
from cuagent.package.readme import time_text, versions_text
from cuagent.task.task import Device, Precision, Task
from cuagent.timing import Effort, Ratio
from cuagent.worker.arms import COMPILE, EAGER

MODULE = "faster.py"
ENTRY = "faster"


def export_rung(
    rung: Rung,
    found: Ladder,
    task: Task,
    out: Path,
    *,
    free: Ratio | None = None,
    measured: date | None = None,
) -> Path:
    """Write the package to `out` and return it.

    `free` is eager's time over the rung's, where it was measured again beside an attempt.
    Raises ExportError where `out` already holds something.
    """
    with made_whole(out) as folder:
        name = package_name(task)
        (folder / MODULE).write_text(module_text(rung.name, task))
        (folder / "__init__.py").write_text(
            f'"""{task.entry} of {task.path.name}, run the way that was measured quickest."""\n\n'
            f'from .{MODULE.removesuffix(".py")} import {ENTRY}\n\n__all__ = ["{ENTRY}"]\n'
        )
        shutil.copy(check.__file__, folder / "check.py")
        about = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
        (folder / "task.json").write_text(json.dumps(about | {"rung": rung.name}, indent=2) + "\n")
        write_original(task, folder)
        (folder / "pyproject.toml").write_text(pyproject(name))
        text = "\n".join(_readme(name, rung, found, task, free or rung.over_eager, measured))
        (folder / "README.md").write_text(text)
    return out


def module_text(name: str, task: Task) -> str:
    """The function that applies a rung, as Python."""
    mode, *options = name.split("+")
    body = list(_statements(mode, options, task))
    flags = any("allow_tf32" in line for line in body)
    warning = " Mind that TF32 is switched for the whole process." if flags else ""
    lines = [
        f'"""{_words(name)}: no kernel, nothing but torch.{warning}"""',
        "",
        "import torch",
        "",
        "",
        f"def {ENTRY}(module: torch.nn.Module) -> torch.nn.Module:",
        f'    """`module` itself, on {task.device}, made to run the way measured quickest."""',
        *(f"    {line}" if line else "" for line in body),
        "    return module",
    ]
    return "\n".join(lines) + "\n"


def _statements(mode: str, options: list[str], task: Task) -> Iterator[str]:
    """In the order in which the worker applies them."""
    if task.device is Device.CUDA:
        tf32 = "fp32" not in options and task.precision is not Precision.MATCH
        if tf32 or "fp32" in options:
            yield f"torch.backends.cuda.matmul.allow_tf32 = {tf32}"
            yield f"torch.backends.cudnn.allow_tf32 = {tf32}"
    if "channels_last" in options:
        yield "module = module.to(memory_format=torch.channels_last)"
    if "bf16" in options:
        yield "plain = module.forward"
        yield ""
        yield "def widened(x):"
        yield "    return x.float() if x.dtype is torch.bfloat16 else x"
        yield ""
        yield "def forward(*arguments, **named):"
        yield f'    with torch.autocast("{task.device}", torch.bfloat16):'
        yield "        output = plain(*arguments, **named)"
        yield "    return torch.utils._pytree.tree_map_only(torch.Tensor, widened, output)"
        yield ""
        yield "module.forward = forward"
    if mode == COMPILE:
        yield "module.compile()"
    elif mode != EAGER:
        yield f'module.compile(mode="{mode}")'


def _words(name: str) -> str:
    mode, *options = name.split("+")
    how = {EAGER: "eager PyTorch", COMPILE: "torch.compile"}
    words = [how.get(mode, f"torch.compile, mode {mode}"), *options]
    return ", ".join(words)


def _readme(
    name: str,
    rung: Rung,
    found: Ladder,
    task: Task,
    free: Ratio | None,
    measured: date | None,
) -> Iterator[str]:
    day = (measured or date.today()).isoformat()
    yield f"# {name}"
    yield ""
    yield (
        f"`{ENTRY}(module)` makes `{task.entry}` of `{task.path.name}` run the way that was "
        f"measured quickest on {task.device} without a kernel: {_words(rung.name)}. Measured with "
        f"cuagent on {day}."
    )
    yield from ["", "## Use", "", "```"]
    yield f"pip install .     # then: from {name} import {ENTRY}; module = {ENTRY}(module)"
    yield f"python check.py {task.path.name}   # compares it with the module as it was"
    yield from ["```", ""]
    yield "Without an argument `check.py` takes `reference.py`, the module as it was."
    yield "Measured under `torch.no_grad()`."
    yield from ["", "## Speed", ""]
    yield "| run as | time | over eager | 95 % interval | error against fp64 |"
    yield "|---|---|---|---|---|"
    for other in found.rungs:
        yield _row(other, free if other.name == rung.name else other.over_eager)
    yield ""
    yield f"Measured on {found.device}{versions_text(found.versions)}; precision {found.precision}."
    if found.effort is Effort.QUICK:
        yield "Times of a quick measurement, for feedback: they are no score of record."
    yield from found.notes
    yield from ["", f"Task `{task.digest[:16]}`.", ""]


def _row(rung: Rung, over: Ratio | None) -> str:
    if rung.failed or over is None:
        return f"| {rung.name} | - | - | {' '.join(rung.failed.split())[:80] or '-'} | - |"
    error = "-" if rung.error is None else f"{rung.error:.1e}"
    return (
        f"| {rung.name} | {time_text(rung.seconds)} | {over.value:.3f}x "
        f"| {over.low:.3f} to {over.high:.3f} ({over.standing}) | {error} |"
    )
