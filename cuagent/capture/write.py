"""Write a capture as a task folder: task.py, its tensors, and a manifest.

This code runs in the user's process at the end of the script, where the recorded values are in
memory. Files: `task.py` (the task), `shape_2.py` and so on (the same module on its other shapes),
`parameters.pt`, `inputs.pt` (integer and mask tensors), `call.pt` (one real call with its result,
to check the rebuilt module) and `manifest.json`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.capture import template
from cuagent.capture.callspec import objects_of
from cuagent.capture.encode import reference
from cuagent.capture.forward import model_text
from cuagent.capture.recorder import Recorder, Shape, Snapshot
from cuagent.capture.sources import TOKENS, is_library

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.capture.samples import Input

RESERVED = ("Model", "get_inputs", "get_init_inputs", "torch", "nn")
STANDARD = ("base64", "hashlib", "io", "linecache", "pathlib", "pickle", "sys", "types", "zlib")
"""Modules of the standard library that the helper functions in a task import."""
MOST_TEXT = 3 << 20
"""Largest number of characters of a task's text; `cuagent.task.source` reads at most 4 MiB."""


class WriteError(Exception):
    """Error: the capture cannot be written as a task. The message is one line."""


def write_capture(recorder: Recorder, out: Path, script: str, facts: dict[str, Any]) -> list[str]:
    """Write the capture as a task folder; return the names of its task files, the main one first.

    `facts`: entries to add to the manifest. Raises WriteError and OSError.
    """
    snapshot = recorder.snapshot
    assert snapshot is not None
    shapes = list(recorder.shapes.values())
    alike = _main_form(shapes)
    for shape in alike:
        for part in (*shape.call.positional, *shape.call.named.values()):
            snapshot.sources.need_tokens(part)
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "parameters.pt": _saved(snapshot.state),
        "inputs.pt": _saved(_kept(alike)),
    }
    text = _task(recorder, snapshot, alike, script, files)
    if len(text) > MOST_TEXT:
        raise WriteError(f"the task's text takes {len(text) >> 20} MiB; name a smaller module")
    checked = next((shape for shape in alike if shape.example and shape.example.outputs), None)
    example = checked.example if checked is not None else None
    call: dict[str, list[Tensor]] = {"inputs": [], "outputs": []}
    if example is not None:
        call = {"inputs": example.arguments, "outputs": example.outputs}
    files["call.pt"] = _saved(call)
    for name, data in files.items():
        (out / name).write_bytes(data)
    (out / "task.py").write_text(text, encoding="utf-8")
    tasks = ["task.py"]
    for number, shape in enumerate(alike[1:], 1):
        name = f"shape_{number + 1}.py"
        calls = f"{shape.count} of {recorder.timed[recorder.module].count} calls"
        (out / name).write_text(template.SHAPE.format(calls=calls, number=number))
        tasks.append(name)
    manifest = _manifest(recorder, snapshot, shapes, alike, tasks) | facts
    manifest["checked_training"] = checked is not None and checked.training
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return tasks


def _main_form(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes of the most frequent call form (`Shape.form`), the shape with the most
    calls first."""
    totals: dict[object, int] = {}
    for shape in shapes:
        totals[shape.form] = totals.get(shape.form, 0) + shape.count
    form = max(totals, key=lambda form: totals[form])
    return sorted((s for s in shapes if s.form == form), key=lambda s: -s.count)


def _kept(shapes: Sequence[Shape]) -> dict[str, Any]:
    return {
        f"{number}.{known.name}": known.kept
        for number, shape in enumerate(shapes)
        for known in shape.inputs
        if not known.drawn
    }


def _saved(value: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _task(
    recorder: Recorder,
    snapshot: Snapshot,
    alike: Sequence[Shape],
    script: str,
    files: dict[str, bytes],
) -> str:
    """Return the source text of task.py."""
    in_modules = _in_modules(snapshot)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    tree = "".join(f"    {row}\n" for row in snapshot.structure.rows)
    shapes = "".join(f"    [{', '.join(map(_input, shape.inputs))}],\n" for shape in alike)
    model = model_text(snapshot, alike[0])
    body, imports = snapshot.sources.resolve(
        f"_FILES = {digests!r}\n_TREE = (\n{tree})\n\n\n{model}\n\n_SHAPES = (\n{shapes})\n",
        in_modules=in_modules,
    )
    user = _user_text(snapshot)
    parts = [_helpers(user + body, in_modules=in_modules), user, body, template.INPUTS.strip("\n")]
    text = "\n\n".join(part for part in parts if part)
    standard = [name for name in STANDARD if f"{name}." in text]
    future = any(map(snapshot.sources.has_future_annotations, snapshot.sources.modules()))
    calls = recorder.timed[recorder.module].count
    lines = [
        f'"""Module {recorder.module} of {Path(script).name}, captured in {calls} calls on '
        f'{time.strftime("%Y-%m-%d")}; see manifest.json."""',
        "",
        *(["from __future__ import annotations", ""] if future and not in_modules else []),
        *(f"import {name}" for name in standard),
        *(["from collections.abc import Mapping"] if "Mapping" in text else []),
        "",
        "import torch",
        "from torch import nn",
        *(line for line in imports if line != "import torch"),
        *_flags(snapshot.flags),
        "",
    ]
    return "\n".join(lines) + "\n" + text + "\n"


def _helpers(text: str, *, in_modules: bool) -> str:
    """Return the source text of the helper functions that `text` calls."""
    found, names = [template.BUILD], []
    for name in ("TENSOR", "OBJECT", "NODE", "ITEMS", "CACHE", "UNPICKLED", "PLAIN"):
        helper: str = getattr(template, name)
        function = f"_{name.lower()}"
        if f"{function}(" in text:
            found.append(helper)
            names.append(f'"{function}": {function}')
    if in_modules:
        found.append(f"_HELPERS = {{{', '.join(names)}}}")
        found.append(template.MODULES)
    return "\n\n".join(part.strip("\n") + "\n" for part in found)


def _in_modules(snapshot: Snapshot) -> bool:
    return len(snapshot.sources.modules()) > 1 or _collides(snapshot)


def _collides(snapshot: Snapshot) -> bool:
    """Return True if the user has one module, and this module defines a name that the task itself
    defines."""
    modules = snapshot.sources.modules()
    if len(modules) != 1:
        return False
    text = snapshot.sources.text(modules[0])
    names = "|".join(RESERVED[:3])
    helpers = re.search(
        r"^(def|class) _(build|file|value|tensor|object|node|items|cache|plain)\b", text, re.M
    )
    return bool(re.search(rf"^(class|def) ({names})\b", text, re.M) or helpers)


def _user_text(snapshot: Snapshot) -> str:
    """Return the user's definitions as text for task.py.

    Definitions of one module are placed at the top level. Several modules are written as strings,
    which the task executes as modules.
    """
    sources = snapshot.sources
    modules = sources.modules()
    if not modules:
        return ""
    if not _in_modules(snapshot):
        return sources.text(modules[0])
    lines = ["_modules = _loaded({"]
    for module in modules:
        text = sources.text(module)
        if sources.has_future_annotations(module):
            text = f"from __future__ import annotations\n{text}"
        quoted = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        lines.append(f'    "{module}": ("{_safe(module)}", """\\\n{quoted}\n"""),')
    return "\n".join([*lines, "})"])


def _safe(module: str) -> str:
    return "captured_main" if module == "__main__" else module


def _input(known: Input) -> str:
    points = known.quantiles() if known.drawn else None
    stride = known.stride if _repeats_only(known) else _packed(known.shape)
    return repr((known.name, known.dtype, known.shape, stride, points))


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def _repeats_only(known: Input) -> bool:
    """Return True if the input's elements share memory only along dimensions of stride 0, as after
    `expand`."""
    extent = 1
    for step, size in sorted(zip(known.stride, known.shape, strict=True)):
        if step == 0 or size == 1:
            continue
        if step < extent:
            return False
        extent = step * (size - 1) + extent
    return True


def _flags(flags: dict[str, Any]) -> list[str]:
    """Return lines of code that set torch's flags as in the script; flags with their usual value
    are left out."""
    from cuagent.task.settings import TorchSettings

    usual = TorchSettings().flags
    setters = {
        "float32_matmul_precision": "torch.set_float32_matmul_precision({!r})",
        "cudnn_allow_tf32": "torch.backends.cudnn.allow_tf32 = {!r}",
        "cudnn_benchmark": "torch.backends.cudnn.benchmark = {!r}",
        "cudnn_deterministic": "torch.backends.cudnn.deterministic = {!r}",
        "fp16_accumulation": "torch.backends.cuda.matmul.allow_fp16_accumulation = {!r}",
    }
    leaves = {
        "matmul": "torch.backends.cuda.matmul.fp32_precision = {!r}",
        "conv": "torch.backends.cudnn.conv.fp32_precision = {!r}",
        "rnn": "torch.backends.cudnn.rnn.fp32_precision = {!r}",
        "cpu_matmul": "torch.backends.mkldnn.matmul.fp32_precision = {!r}",
    }
    if flags.get("float32_matmul_precision") is None:
        setters |= leaves
    lines = [
        line.format(flags[name])
        for name, line in setters.items()
        if flags.get(name) is not None and flags[name] != usual[name]
    ]
    for name in ("fp16", "bf16"):
        reduction = flags.get(f"{name}_reduction", [True])
        if not reduction[0]:
            place = f"torch.backends.cuda.matmul.allow_{name}_reduced_precision_reduction"
            lines.append(f"{place} = False")
    if flags.get("default_dtype", "float32") != "float32":
        lines.append(f"torch.set_default_dtype(torch.{flags['default_dtype']})")
    if flags.get("deterministic", "off") != "off":
        warn = flags["deterministic"] == "warn"
        lines.append(f"torch.use_deterministic_algorithms(True, warn_only={warn})")
    return lines


def _manifest(
    recorder: Recorder,
    snapshot: Snapshot,
    shapes: Sequence[Shape],
    alike: Sequence[Shape],
    tasks: Sequence[str],
) -> dict[str, Any]:
    entry = recorder.timed[recorder.module]
    window, inside = recorder.window(), recorder.seconds(entry)
    structure = snapshot.structure
    return {
        "version": 1,
        "module": recorder.module,
        "class": f"{snapshot.reference.__module__}.{snapshot.reference.__qualname__}",
        "calls": entry.count,
        "calls_of_class": recorder.calls_by_class[snapshot.reference],
        "steps": len(recorder.steps),
        "window_s": window,
        "module_s": inside,
        "share": min(1.0, inside / window) if window else 0.0,
        "calls_under_graph_capture": recorder.under_capture,
        "calls_of_other_forms": recorder.others,
        "weights": {"tensors": len(snapshot.state), "bytes": _bytes(snapshot.state.values())},
        "tied": structure.tied,
        "hooks": structure.hooks,
        "skipped": [*structure.skipped, *snapshot.sources.missing],
        "flags": snapshot.flags,
        "shapes": [_shape(shape, alike, tasks, entry.count) for shape in shapes],
        **_call_facts(alike[0], snapshot),
    }


def _call_facts(shape: Shape, snapshot: Snapshot) -> dict[str, Any]:
    """Return manifest entries on the arguments.

    `call` is the form of the call, `objects` names what keeps a package from it.
    """
    if (outcome := shape.outcome) is not None:
        call = outcome.spec | {"libraries": _libraries(snapshot, outcome.spec["kinds"])}
        changed = [shape.call.names[number] for number in outcome.in_place]
        facts: dict[str, Any] = {"call": call, "objects": [], "autocast": shape.autocast}
        return facts | ({"in_place": changed} if changed else {})
    unknown = [shape.unrepeatable] if shape.unrepeatable else objects_of(shape.call, is_library)
    return {
        "call": None,
        "objects": unknown or ["what they return or change"],
        "autocast": shape.autocast,
    }


def _libraries(snapshot: Snapshot, kinds: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the versions of the libraries, besides torch, that define the module's classes and
    those of the objects in its calls."""
    text = "".join([reference(snapshot.reference), *snapshot.structure.rows])
    used = [*(module for module, _ in TOKENS.findall(text)), *(kind["module"] for kind in kinds)]
    names = {module.partition(".")[0] for module in used if is_library(module)}
    found = {
        name: getattr(sys.modules.get(name), "__version__", None)
        for name in sorted(names - {*sys.stdlib_module_names, "torch", "cuagent"})
    }
    return {name: version for name, version in found.items() if isinstance(version, str)}


def _bytes(tensors: Any) -> int:
    return sum(x.nbytes for x in tensors)


def _shape(
    shape: Shape, alike: Sequence[Shape], tasks: Sequence[str], total: int
) -> dict[str, Any]:
    place = next((n for n, other in enumerate(alike) if other is shape), None)
    return {
        "task": tasks[place] if place is not None else None,
        "calls": shape.count,
        "weight": shape.count / max(1, total),
        "training": shape.training,
        "with_gradients": shape.with_gradients,
        "autocast": shape.autocast,
        "aliases": shape.call.aliases,
        "inputs": [
            {
                "name": known.name,
                "dtype": known.dtype,
                "shape": list(known.shape),
                "stride": list(known.stride),
                "device": known.device,
                "values": "drawn" if known.drawn else f"{len(known.kept)} recorded",
                "requires_grad": known.requires_grad,
                "strides_vary": known.other_strides,
            }
            for known in shape.inputs
        ],
    }
