"""Write an attempt as files that run its kernel for verified calls and the original for all others.

Users import `model_new.py`. Next to it is the folder `model_new_verified` with the attempt as it
was verified, the guard (`guard.py`) and the facts that the guard compares a call with. Nothing here
runs code of the task or of the attempt.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cuagent.attempt import ENTRY, KERNELS, MODULE, Attempt
from cuagent.package.folder import ExportError
from cuagent.package.names import quoted_name
from cuagent.task import Device, Task, flags
from cuagent.task.imports import imported_digest, imported_texts, package_of
from cuagent.task.settings import recorded_settings
from cuagent.task.step import Step, forward_task
from cuagent.task.tree import count
from cuagent.verify.domain import Domain

FOLDER = "model_new_verified"
FACTS = "verified.json"
SET_PRODUCTS = ("torch.backends", "fp32_precision", "allow_tf32", "matmul_precision")
SET_OTHERS = ("benchmark", "deterministic", "set_default", "accumulation")
"""Words in a candidate's code that show that it may set torch's flags: for matrix products, and
others."""
PRODUCTS = re.compile(
    r"linear|conv|matmul|mm\b|mv\b|@|einsum|attention|transformer|lstm|gru|rnn|dist|dot|outer|inner"
    r"|kron|linalg|matrix|solve|corr|cov|chain|addr|ger\b|ops\b|getattr|import_module|compile",
    re.IGNORECASE,
)
"""Words that show that a candidate's Python may call matrix products of torch, which depend on
precision flags.

Without any of them the test of the flags is left out, which saves half a microsecond a call. A
missing word would let a call run with the wrong precision."""
OLDEST_TORCH = (2, 6)
"""Oldest version of torch that an export runs with, the same as in cuagent's `pyproject.toml`."""
GUARD_FILES = (
    *("boundary.py", "callform.py", "exported.py", "forms.py", "functional.py", "gradients.py"),
    *("graphs.py", "guard.py", "layers.py", "likeness.py", "machine.py", "modes.py", "nesting.py"),
    *(
        "objects.py",
        "original.py",
        "outputs.py",
        "reads.py",
        "recomputed.py",
        "replace.py",
        "replacement.py",
    ),
    *("seen.py", "state.py", "verified.py", "watch.py"),
)
"""Files of this package that are copied into every export; they do not import cuagent."""


@dataclass(frozen=True)
class Captured:
    """The module of a user's script that a task was captured from."""

    module: str
    """Name of the module in the script, such as `model.layers.0.mlp`."""
    kind: str
    """Name of the module's class; the task's `Model` is a subclass of it."""
    call: dict[str, Any] | None
    """Form of the recorded calls' arguments (`cuagent.capture.callspec`); None if they hold objects
    other than tensors and constants."""
    autocast: str | None = None
    """Dtype of the autocast that the recorded calls were under; None without autocast."""
    shapes: tuple[Domain, ...] = ()
    """Domains of further shapes that the attempt was accepted for."""


def guarded_files(
    attempt: Attempt,
    task: Task,
    domain: Domain | None,
    reference: str,
    captured: Captured | None = None,
) -> dict[str, str]:
    """Return the text of each file by its path.

    `reference` is the path for the original module's file. Raises ExportError if `domain` is None:
    the record does not say which calls were verified.
    """
    if domain is None:
        raise ExportError(
            "this record was written by an earlier version of cuagent and does not say which calls "
            "the kernel was verified for; run cuagent optimize --resume or cuagent verify again"
        )
    backward = backward_facts(task, domain)
    task, domain = forward_task(task), forward_domain(task, domain)
    for name, _ in attempt.files:
        if name != MODULE and not name.startswith(f"{KERNELS}/"):
            raise ExportError(f"{name}: no part of an attempt, so no verdict covers it")
    for name in (task.entry, task.entry if captured is None else captured.kind):
        if not name.isidentifier():
            raise ExportError(f"{name[:80]!a} is not the name of a class")
    package = Path(__file__).parent
    title = f'"""{ENTRY} as it was verified; {MODULE} in the parent folder decides when it runs."""'
    inside = {
        "__init__.py": f"{title}\n",
        **{name: (package / name).read_text(encoding="utf-8") for name in GUARD_FILES},
        Path(flags.__file__).name: Path(flags.__file__).read_text(encoding="utf-8"),
        FACTS: json.dumps(verified_facts(task, domain, attempt, captured, backward), indent=1)
        + "\n",
        **dict(attempt.files),
        **_imports(task),
    }
    files = {f"{FOLDER}/{name}": text for name, text in inside.items()}
    text = entry_text(task, reference, task.entry if captured is None else captured.kind)
    return {MODULE: text, reference: task.source} | files


def forward_domain(task: Task, domain: Domain) -> Domain:
    """Return the domain of the verified forward calls.

    For a task that is a training step, cut off the cotangents that follow the arguments.
    """
    step = Step.of(task)
    if step is None:
        return domain
    nesting = json.loads(domain.nesting)
    nesting["items"] = nesting["items"][: step.arguments]
    return replace(
        domain,
        names=domain.names[: step.arguments],
        nesting=json.dumps(nesting),
        tensors=domain.tensors[: count(nesting)],
    )


def backward_facts(task: Task, domain: Domain) -> dict[str, object] | None:
    """Return the entry `backward` of `verified.json`: the gradients that the verdict covers.

    None if the task is not a training step.
    """
    step = Step.of(task)
    if step is None:
        return None
    cotangents = domain.tensors[len(forward_domain(task, domain).tensors) :]
    return {
        "inputs": step.inputs,
        "parameters": step.parameters,
        "unused": step.unused,
        "outputs": step.outputs,
        "tensors": [asdict(form) for form in cotangents],
    }


def verified_facts(
    task: Task,
    domain: Domain,
    attempt: Attempt,
    captured: Captured | None = None,
    backward: dict[str, object] | None = None,
) -> dict[str, object]:
    """Return the content of `verified.json`, which `verified.py` reads.

    `backward` is the result of `backward_facts`; None if the attempt has no backward.
    """
    settings = recorded_settings(domain.settings, task.precision)
    return {
        "entry": task.entry,
        "package": package_of(task.path)[1],
        "device": domain.device,
        "names": domain.names,
        **_shape(domain),
        **({} if captured is None else _of_script(captured)),
        **({} if backward is None else {"backward": backward}),
        "init": json.loads(domain.init),
        "default_dtype": settings.default_dtype,
        "flags": settings.products(Device(domain.device)),
        "changes": _changes(attempt),
        "products": any(PRODUCTS.search(t) for n, t in attempt.files if n.endswith(".py")),
    }


def _shape(domain: Domain) -> dict[str, object]:
    return {
        "nesting": json.loads(domain.nesting),
        "tensors": [
            {"dtype": form.dtype, "shape": form.shape, "stride": form.stride}
            for form in domain.tensors
        ],
    }


def _of_script(captured: Captured) -> dict[str, object]:
    return {
        "class": captured.kind,
        "call": captured.call,
        "autocast": captured.autocast,
        "more_shapes": [_shape(domain) for domain in captured.shapes],
    }


def _changes(attempt: Attempt) -> str:
    """Return which flags of torch the kernel's code may change: "" for none, `products` for those
    of matrix products, or `all`."""
    text = "".join(text for _, text in attempt.files)
    if any(word in text for word in SET_OTHERS):
        return "all"
    return "products" if any(word in text for word in SET_PRODUCTS) else ""


def entry_text(task: Task, reference: str, kind: str) -> str:
    """Return the text of the `model_new.py` that users import; `kind` names the user's class."""
    return f'''"""{kind} of {quoted_name(task.path)} with verified kernels. Written by cuagent.

The kernel runs for the calls that {FOLDER}/{FACTS} lists. For every other call the original
module runs, with the same parameters, and a RuntimeWarning says why.
"""

import re
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent

numbers = re.match("([0-9]+)[.]([0-9]+)", torch.__version__)
if numbers and tuple(map(int, numbers.groups())) < {OLDEST_TORCH}:
    raise ImportError(
        f"{{__name__}} needs torch {".".join(map(str, OLDEST_TORCH))} or newer; "
        f"found {{torch.__version__}}"
    )
try:
    if __package__:
        from .{FOLDER} import guard, replace
    else:  # imported by path, not as part of a package
        sys.path += [path for path in (str(HERE),) if path not in sys.path]
        from {FOLDER} import guard, replace
except (AttributeError, ImportError) as error:  # of what another version of torch lacks
    raise ImportError(
        f"{{__name__}} does not work with torch {{torch.__version__}} ({{error}}); export it again "
        "with a newer cuagent, or do not import it"
    ) from error

if Path(guard.__file__).resolve().parent.parent != HERE:
    raise ImportError(
        f"{{guard.__file__}} belongs to another kernel; import each kernel as part of a package"
    )


class {ENTRY}(guard.Guarded):
    """Same constructor, forward and state_dict as {task.entry}."""

    folder = HERE / "{FOLDER}"
    reference = HERE / "{reference}"


PACKAGE = replace.Package({ENTRY}.folder, {ENTRY}.reference)


def optimize_(model, original=None, gradients=None):
    """Let the {kind} modules in `model` run the kernel, in place; return `model`.

    Parameters, state_dict and hooks stay. Where gradients are wanted, the kernel runs if its own
    backward was verified; else the original. gradients=True runs the kernel there all the same, and
    the backward pass computes the original again; gradients=False never runs it there.
    `original` names the class of the modules if its file is not the verified one.
    """
    return replace.optimize_(model, PACKAGE, original, gradients)


def accelerate_(kind):
    """Let each new object of the class {kind} run the kernel; return the class."""
    return replace.accelerate_(kind, PACKAGE)


def restore_(model):
    """Undo `optimize_`; return `model`."""
    return replace.restore_(model)
'''


def _imports(task: Task) -> dict[str, str]:
    """Return the user's files that the original imports, by their path in the export; none if they
    changed since the judgement."""
    if not task.imported or imported_digest(task.path) != task.imported:
        return {}
    return {f"imports/{name}": text for name, text in imported_texts(task.path).items()}
