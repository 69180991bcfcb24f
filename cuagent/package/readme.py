"""Write the README of an exported package: the measured figures with machine and versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

from cuagent.attempt import ENTRY, Attempt
from cuagent.package.check import REFERENCE
from cuagent.package.figures import Figures
from cuagent.package.guarded import Captured, forward_domain
from cuagent.package.names import quoted_name
from cuagent.score import Score
from cuagent.task import Spec, Task
from cuagent.task.step import forward_task
from cuagent.timing import Effort, Timing, interval_title
from cuagent.verdict import Verdict, on_inputs
from cuagent.verify.domain import Domain, TensorForm, packed


def readme(
    name: str,
    attempt: Attempt,
    task: Task,
    figures: Figures,
    measured: date | None,
    captured: Captured | None = None,
) -> str:
    """Return the Markdown text; it states which figures were not measured."""
    verdict, timing, score, domain = figures.verdict, figures.timing, figures.score, figures.domain
    domain = None if domain is None else forward_domain(task, domain)
    task, trains = forward_task(task), bool(task.step)
    day = (measured or date.today()).isoformat()
    kind = task.entry if captured is None else captured.kind
    kernels = ", ".join(f"`{source}`" for source in attempt.kernels) or "none"
    return "\n".join(
        [
            f"# {name}",
            "",
            f"{_subject(task, captured)} Made and measured with cuagent on {day}.",
            f"Kernels: {kernels}; device: {task.device}.",
            "",
            "## Use",
            "",
            "```",
            "pip install .",
            f"python -m {name}.check --time   # compares it with the original, and times both",
            "```",
            "",
            "```python",
            f"import {name}",
            f"{name}.optimize_(model)   # its {kind} modules run the kernel, in place",
            f"{name}.restore_(model)    # undo",
            "```",
            "",
            f"`from {name} import {ENTRY}` gives a module with the original's constructor. "
            "`check.py` uses `reference.py`, the original, or the file that it is given; if the "
            "kernel is slower on a machine, `--time` makes the package run the original there. "
            f"Without an installation, `from model_new import {ENTRY}` works with this folder on "
            f"the path. {_TRAINED if trains else _NOT_TRAINED}",
            "",
            "## Verified calls",
            "",
            *_verified(task, verdict, domain, captured, trains=trains),
            "",
            "## Trust",
            "",
            "The verdict says that the kernel computed the right values in a sandboxed process, on "
            f"{figures.timing.device if figures.timing else 'the machine that judged it'}. It does "
            "not say that its code is harmless, or right on another model of processor or GPU. "
            "The Python and C++ in `model_new_verified/` that is not part of cuagent (`NOTICE`) "
            "runs with the rights of your process, from import on: read it first. `pip install` "
            "runs none of it. A package does not check its own files: compiled libraries in "
            "`prebuilt/` are used as they are, and a changed source is compiled as it is.",
            "",
            "## Build",
            "",
            "A kernel is compiled at first use (" + _compiler(attempt) + ") and cached by content; "
            "machines of the kinds in `model_new_verified/kernels/prebuilt/` use those libraries. "
            "Without a compiler the original runs, with a warning.",
            "",
            "## Speed",
            "",
            *_speed(timing, score),
            "",
            "## Correctness",
            "",
            *_correctness(task, verdict, figures.contract),
            "",
            f"Attempt `{attempt.digest[:16]}`, task `{task.digest[:16]}`.",
            "",
        ]
    )


_TRAINED = (
    "Measured and verified were training steps: forward and backward together. The kernel has its "
    "own backward pass, whose gradients were compared with those in fp64; not where inputs hold "
    "NaN or infinities. Second derivatives are the original's, and so are all gradients if one is "
    "wanted of a parameter that was frozen."
)
_NOT_TRAINED = (
    "Measured under `torch.no_grad()`. Where gradients are wanted the original runs, so training "
    "loses no time. `optimize_(model, gradients=True)` runs the kernel there too; the backward "
    "pass then computes the original again, which takes less memory and more time."
)


def _subject(task: Task, captured: Captured | None) -> str:
    """Return the sentence that says which modules the package replaces."""
    if captured is None:
        return (
            f"`{ENTRY}` replaces `{task.entry}` of `{quoted_name(task.path)}`: same constructor, "
            "same state_dict, faster forward."
        )
    return (
        f"Faster `{captured.kind}` modules, as `{captured.module}` of the captured script: same "
        "objects, same parameters, same state_dict."
    )


def _verified(
    task: Task,
    verdict: Verdict | None,
    domain: Domain | None,
    captured: Captured | None,
    *,
    trains: bool,
) -> list[str]:
    """Return the lines that list the verified calls. `trains`: gradients are verified too."""
    grad_mode = "with or without gradients" if trains else "under `torch.no_grad()`"
    others = "" if trains else ", gradients"
    if domain is None:
        return ["Not recorded."]
    tensors = iter(domain.tensors)
    items = json.loads(domain.nesting)["items"]
    names = [*domain.names, *(str(number) for number in range(len(domain.names), len(items)))]
    arguments, named = json.loads(domain.init)["items"]
    parts = [_form(item, tensors) for item in arguments["items"]]
    pairs = zip(named["keys"], named["items"], strict=True)
    parts += [f"{key}={_form(item, tensors)}" for key, item in pairs]
    lines = [
        f"On {domain.device}, in eval mode, {grad_mode}, {_autocast(captured)}, and with exactly "
        "these arguments:",
        "",
        "| argument | verified |",
        "|---|---|",
        *(
            f"| {name} | `{_form(item, tensors)}` |"
            for name, item in zip(names, items, strict=False)
        ),
        *(
            [f"| constructor | `{task.entry}({', '.join(parts)})` |"]
            if captured is None
            else [_also(domain.names, other) for other in captured.shapes]
        ),
        *_recorded_call(captured, domain.names),
        "",
        f"Every other call runs the original module (`{REFERENCE}`) with the same parameters, and "
        "a `RuntimeWarning` says why, once for each reason: another shape, dtype, stride or "
        f"device, training mode{others}. `model.why_original(x)` returns that reason without a "
        "call. Verified values:",
        "",
    ]
    if verdict is None or not verdict.draws:
        return [*lines, "- not recorded"]
    kinds = ", ".join(dict.fromkeys(draw.kind.split(", ")[0] for draw in verdict.draws))
    lines.append(f"- {len(verdict.draws)} secret draws of these kinds: {kinds}")
    return lines + [f"- {note}" for note in verdict.notes]


def _autocast(captured: Captured | None) -> str:
    dtype = None if captured is None else captured.autocast
    return f"under autocast to {dtype}" if dtype else "without autocast"


def _recorded_call(captured: Captured | None, names: tuple[str, ...]) -> list[str]:
    """Return the lines that show the recorded call, whose other arguments must be equal too."""
    if captured is None or captured.call is None:
        return []
    parts = [_argument(item, names) for item in captured.call["positional"]]
    parts += [f"{key}={_argument(item, names)}" for key, item in captured.call["named"].items()]
    return ["", f"The call: `{captured.kind.lower()}({', '.join(parts)})`."]


def _argument(item: Any, names: tuple[str, ...]) -> str:
    """Return an argument of the recorded call as text; `...` for an object."""
    (kind, value), *_ = item.items()
    match kind:
        case "tensor":
            return names[value]
        case "const":
            return repr(value)
        case "list" | "tuple":
            inner = ", ".join(_argument(part, names) for part in value)
            return f"[{inner}]" if kind == "list" else f"({inner}{',' * (len(value) == 1)})"
        case "dict":
            pairs = (f"{key!r}: {_argument(part, names)}" for key, part in value.items())
            return f"{{{', '.join(pairs)}}}"
    return "..."


def _form(item: Spec, tensors: Iterator[TensorForm]) -> str:
    """Return an argument as text, such as `float32[4, 128]` for a tensor."""
    match item["kind"]:
        case "tensor":
            form = next(tensors)
            strides = f" strides {list(form.stride)}" if form.stride != packed(form.shape) else ""
            return f"{form.dtype}{list(form.shape)}{strides}"
        case "const":
            return repr(item["value"])
    inner = [_form(each, tensors) for each in item["items"]]
    if item["kind"] == "dict":
        inner = [f"{key!r}: {text}" for key, text in zip(item["keys"], inner, strict=True)]
        return f"{{{', '.join(inner)}}}"
    return f"[{', '.join(inner)}]" if item["kind"] == "list" else f"({', '.join(inner)})"


def _also(names: tuple[str, ...], domain: Domain) -> str:
    """Return the table row for a further verified shape of a captured module."""
    tensors = iter(domain.tensors)
    items = json.loads(domain.nesting)["items"]
    pairs = zip([*names, *map(str, range(len(names), len(items)))], items, strict=False)
    return f"| or | `{', '.join(f'{name}: {_form(item, tensors)}' for name, item in pairs)}` |"


def _compiler(attempt: Attempt) -> str:
    needed = {"nvcc" if source.endswith(".cu") else "g++" for source in attempt.kernels}
    return "needs " + " and ".join(sorted(needed)) if needed else "no compiler needed"


def _speed(timing: Timing | None, score: Score | None) -> list[str]:
    if timing is None:
        return ["Not measured."]
    lines = [
        "Ratios come from paired samples and times are medians of all samples, so the quotient of "
        "two times may differ from the ratio.",
        "",
    ]
    lines += [
        f"| baseline | speedup | {interval_title(timing.effort)} | baseline time | kernel time |",
        "|---|---|---|---|---|",
    ]
    candidate = timing.arm("candidate")
    for baseline, ratio in timing.ratios.items():
        arm = timing.arm(baseline)
        lines.append(
            f"| {baseline} | {ratio.value:.3f}x | {ratio.low:.3f} to {ratio.high:.3f} "
            f"({ratio.standing}) | {time_text(arm.median if arm else None)} "
            f"| {time_text(candidate.median if candidate else None)} |"
        )
    lines += ["", f"Measured on {timing.device}{versions_text(timing.versions)}."]
    if timing.effort is Effort.QUICK:
        lines.append("This was a quick measurement, for feedback; it is not a score of record.")
    if timing.share is not None:
        lines.append(f"The kernel reaches {timing.share:.0%} of the roofline.")
    lines += [f"Note: {remark}" for remark in timing.remarks]
    if score is not None:
        lines.append(f"Milestone score: {score.reward} (one of -1, 1, 2, 3).")
    return lines


def _correctness(task: Task, verdict: Verdict | None, contract: str) -> list[str]:
    if verdict is None:
        return ["Not verified."]
    lines = [f"Verdict: {verdict.reason}. {verdict.detail}".rstrip()]
    lines.append(
        f"Precision: {verdict.precision or task.precision} (the task admits {task.precision}). "
        f"Isolation during the verdict: {verdict.tier}."
    )
    if contract:
        lines.append(
            f"{contract[0].upper()}{contract[1:]}. The kernel's call does not depend on the "
            "process's settings: it sets them as they were and restores them."
        )
    for rule, result in (("lax", verdict.lax), ("strict", verdict.strict)):
        if result is not None:
            word = "passed" if result.passed else "failed"
            lines.append(f"- {rule} rule: {word}, largest error {result.worst:.3g} times its bound")
    if verdict.draws:
        largest = max(verdict.draws, key=lambda draw: draw.max_error)
        lines.append(
            f"- largest absolute error against fp64 in {len(verdict.draws)} draws: "
            f"{largest.max_error:.3g} ({on_inputs(largest.kind)})"
        )
    return lines


def time_text(seconds: float | None) -> str:
    """Return the time of a call as text; a dash for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def versions_text(versions: dict[str, str]) -> str:
    """Return the versions in parentheses, to follow the name of the machine."""
    return f" ({', '.join(f'{k} {v}' for k, v in versions.items())})" if versions else ""
