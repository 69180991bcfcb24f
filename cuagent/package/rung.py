"""Export the best rung of the ladder as a self-contained folder, if no kernel is faster than it.

The folder holds a function that applies the rung to a module, `optimize_` and `restore_` for the
modules of the user's class in a model, a check against the original module, and the figures.
Not covered: anything that needs more than torch.
Invariant: the function does exactly what was timed under the rung's name (`cuagent.worker.arms`),
with the same flags of torch, and leaves no flag changed after a call. It also copies the results
of torch's own CUDA graphs, which the next call would overwrite.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from cuagent.arms import BENCHMARK, COMPILE, EAGER, GRAPH, OVERWRITING
from cuagent.measure.rungs import Ladder, Rung
from cuagent.package import check
from cuagent.package.folder import (
    atomic_folder,
    package_name,
    write_original,
    write_project,
)
from cuagent.package.guarded import Captured
from cuagent.package.names import quoted_name
from cuagent.package.readme import time_text, versions_text
from cuagent.task import TorchSettings, flags
from cuagent.task.settings import arm_settings, recorded_settings
from cuagent.task.step import Step, forward_task
from cuagent.task.task import Task
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
    captured: Captured | None = None,
) -> Path:
    """Write the package to `out` and return `out`.

    `captured` names the module of a user's script that the task was captured from. `free` is the
    rung's speedup over eager from a later timing with an attempt; None uses the ladder's.
    `measured` is the date in the README; None stands for today. Raises ExportError if `out` is not
    empty.
    """
    with atomic_folder(out) as folder:
        name, kind = package_name(forward_task(task)), forward_task(task).entry
        kind = kind if captured is None else captured.kind
        own = recorded_settings(ladder.own_settings, task.precision)
        (folder / MODULE).write_text(module_text(rung.name, task, own, kind))
        shutil.copy(flags.__file__, folder / "flags.py")
        if GRAPH in rung.name.split("+"):
            source = importlib.resources.files("cuagent.kernels") / "cuda_graph.py"
            (folder / "cuda_graph.py").write_text(source.read_text("utf-8"))
        (folder / "__init__.py").write_text(
            f'"""{kind} of {quoted_name(task.path)}, with the fastest measured settings."""\n\n'
            f"from .{MODULE.removesuffix('.py')} import {ENTRY}, optimize_, restore_\n\n"
            f'__all__ = ["{ENTRY}", "optimize_", "restore_"]\n'
        )
        shutil.copy(check.__file__, folder / "check.py")
        facts = {"name": name, "entry": task.entry, "device": task.device, "task": task.digest}
        (folder / "task.json").write_text(json.dumps(facts | {"rung": rung.name}, indent=2) + "\n")
        write_original(task, folder)
        write_project(name, folder)
        text = "\n".join(_readme(name, kind, rung, ladder, task, free or rung.over_eager, measured))
        (folder / "README.md").write_text(text)
    return out


def module_text(name: str, task: Task, own: TorchSettings, kind: str = "Model") -> str:
    """Return Python text with functions that apply the rung `name`.

    `own` are the torch settings of the user's process, `kind` is the name of the module's class.
    """
    mode, *options = name.split("+")
    used = arm_settings(own, task.precision, options)
    cast, graph = "bf16" in options, GRAPH in options
    set_flags = used.products(task.device)
    if BENCHMARK in options:
        set_flags |= {"cudnn_benchmark": True}
    lines = [
        f'"""Run a module with {_settings(name)}; torch only, no kernel.',
        "",
        f"torch's settings during a call: {used.line(task.device)}. They are set around the call",
        'and restored, so the settings of your process stay as they are."""',
        "",
        "import types",
        "import warnings",
        "import weakref",
        "",
        "import torch",
        "",
        "try:  # as part of its package",
        *(["    from .cuda_graph import graph_calls"] if graph else []),
        "    from .flags import flags_set, flags_test",
        "except ImportError:  # by path, with its folder on sys.path",
        *(["    from cuda_graph import graph_calls"] if graph else []),
        "    from flags import flags_set, flags_test",
        "",
        f"FLAGS = {json.dumps(set_flags)}".replace("null", "None")
        .replace("true", "True")
        .replace("false", "False"),
        "HAS_FLAGS = flags_test(FLAGS)",
        "",
        "",
        f"KIND = {kind!r}",
        'FORWARDS = ("forward", "_forward_in_float32", "_forward_without_flags")',
        '"""Attributes that replace forward in a module."""',
        "EARLIER = weakref.WeakKeyDictionary()",
        '"""The compiled calls that modules had before."""',
        "",
        "",
        f"def {ENTRY}(module: torch.nn.Module) -> torch.nn.Module:",
        f'    """Apply the fastest measured settings on {task.device} and return `module`."""',
        *(f"    {line}" if line else "" for line in _statements(mode, options)),
        "    return module",
        *_OF_MODELS.format(entry=ENTRY, kind=kind, compiled=mode != EAGER or graph).splitlines(),
        "",
        "",
        *(_CAST.format(device=task.device).splitlines() if cast else []),
        *_call_text(mode, graph).splitlines(),
    ]
    return "\n".join(lines) + "\n"


_OF_MODELS = """

def optimize_(model, original=None):
    \"""Apply `{entry}` to the {kind} modules in `model`, in place; return `model`.

    `original` names the class, if it is not {kind}.
    \"""
    found = False
    for module in list(model.modules()):
        if type(module) is original if original else type(module).__name__ == KIND:
            found = True
            if not module.__dict__.get("_is_faster") or _has_lost(module):
                _restore(module)
                if module.__dict__.get("_compiled_call_impl") is not None:
                    EARLIER[module] = module._compiled_call_impl
                {entry}(module)
                module.__dict__["_is_faster"] = True
    if not found:
        name = original.__name__ if original else KIND
        text = f"nothing was optimized: the model has no module of class {{name}}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return model


def restore_(model):
    \"""Undo `optimize_`, except for the memory format of weights; return `model`.\"""
    for module in model.modules():
        _restore(module)
    return model


def _restore(module):
    if module.__dict__.pop("_is_faster", False):
        for name in ("_compiled_call_impl", *FORWARDS):
            module.__dict__.pop(name, None)
        if module in EARLIER:
            module._compiled_call_impl = EARLIER.pop(module)


def _has_lost(module):
    # A deep copy and an unpickled module have no compiled call.
    return {compiled} and module.__dict__.get("_compiled_call_impl") is None"""
_CAST = """\
def _to_float32(x):
    return x.float() if x.dtype is torch.bfloat16 else x


def _in_bfloat16(self, *arguments, **named):
    with torch.autocast("{device}", torch.bfloat16):
        output = self._forward_in_float32(*arguments, **named)
    return torch.utils._pytree.tree_map_only(torch.Tensor, _to_float32, output)


"""
_EAGER = """\
def _with_flags(self, *arguments, **named):
    if torch.compiler.is_compiling():  # a graph of yours that holds this module
        return self._forward_without_flags(*arguments, **named)
    if HAS_FLAGS():
        return self._forward_without_flags(*arguments, **named)
    with flags_set(FLAGS):
        return self._forward_without_flags(*arguments, **named)
"""
_COMPILED = """\
def _with_flags(compiled):
    def call(*arguments, **named):
        if torch.compiler.is_compiling():  # a graph of yours that holds this module
            return compiled(*arguments, **named)
        if HAS_FLAGS():
            return {result}
        with flags_set(FLAGS):
            return {result}

    return call
"""
_COPIED = """\
def _copied(output):
    # The next call overwrites the results of torch's CUDA graphs.
    if isinstance(output, torch.Tensor):
        return output.clone()
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, output)


"""
"""Source texts for the exported file. The functions are bound to the module as methods, so a deep
copy gets its own. The flags are set around the compiled call, not inside its graph."""


def _call_text(mode: str, graph: bool) -> str:
    """Return the text of the function that calls the module with the flags set."""
    if mode == EAGER and not graph:
        return _EAGER
    call = "compiled(*arguments, **named)"
    if mode in OVERWRITING and not graph:
        return _COPIED + _COMPILED.format(result=f"_copied({call})")
    return _COMPILED.format(result=call)


def _statements(mode: str, options: list[str]) -> Iterator[str]:
    """Yield the statements in the order in which the worker applies the options."""
    if "channels_last" in options:
        yield "formats = {4: torch.channels_last, 5: torch.channels_last_3d}"
        yield "for tensor in (*module.parameters(), *module.buffers()):"
        yield "    if tensor.ndim in formats:"
        yield "        tensor.data = tensor.data.to(memory_format=formats[tensor.ndim])"
    if "bf16" in options:
        yield "module._forward_in_float32 = module.forward"
        yield "module.forward = types.MethodType(_in_bfloat16, module)"
    if mode == EAGER and GRAPH not in options:
        yield "module._forward_without_flags = module.forward"
        yield "module.forward = types.MethodType(_with_flags, module)"
        return
    if mode != EAGER:
        yield "module.compile()" if mode == COMPILE else f'module.compile(mode="{mode}")'
    if GRAPH in options:
        yield "graph_calls(module)"
    yield "module._compiled_call_impl = _with_flags(module._compiled_call_impl)"


def _settings(name: str) -> str:
    mode, *options = name.split("+")
    modes = {EAGER: "eager PyTorch", COMPILE: "torch.compile"}
    return ", ".join([modes.get(mode, f"torch.compile, mode {mode}"), *options])


def _readme(
    name: str,
    kind: str,
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
        f"This package makes `{kind}` of `{quoted_name(task.path)}` run with the fastest settings "
        f"measured on {task.device} without a kernel: {_settings(rung.name)}. Measured with "
        f"cuagent on {day}."
    )
    yield from ["", "## Use", "", "```"]
    yield "pip install ."
    yield f"python check.py {quoted_name(task.path)}   # compares it with the original module"
    yield from ["```", "", "```python", f"import {name}", ""]
    yield f"{name}.optimize_(model)  # every module of class {kind}"
    yield f"{name}.restore_(model)  # back, except for the memory format of weights"
    yield f"module = {name}.{ENTRY}(module)  # one module"
    yield from ["```", ""]
    yield "Without an argument `check.py` uses `reference.py`, the original module."
    step = Step.of(task) is not None
    yield f"Measured {'in training steps' if step else 'under `torch.no_grad()`'}."
    yield from ["", "## Speed", ""]
    yield "| settings | time | speedup over eager | interval | error against fp64 |"
    yield "|---|---|---|---|---|"
    for each in ladder.rungs:
        yield _row(each, free if each.name == rung.name else each.over_eager)
    yield ""
    machine = f"{ladder.device}{versions_text(ladder.versions)}"
    yield f"Measured on {machine}; precision {ladder.precision}."
    if ladder.settings:
        needs = f" {rung.name} runs with {rung.settings}." if rung.settings else ""
        yield f"Baselines: {ladder.settings}.{needs} `{ENTRY}` sets this around a call only."
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
