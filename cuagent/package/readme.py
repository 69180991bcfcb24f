"""The README of an exported package: the figures as measured, with what they were measured on."""

from __future__ import annotations

from datetime import date

from cuagent.attempt import ENTRY, Attempt
from cuagent.score import Score
from cuagent.task.task import Task
from cuagent.timing import Effort, Timing
from cuagent.verdict import Verdict


def readme(
    name: str,
    attempt: Attempt,
    task: Task,
    verdict: Verdict | None,
    timing: Timing | None,
    score: Score | None,
    measured: date | None,
) -> str:
    """Markdown; what was not measured is named as such."""
    day = (measured or date.today()).isoformat()
    kernels = ", ".join(f"`{source}`" for source in attempt.kernels) or "none"
    return "\n".join(
        [
            f"# {name}",
            "",
            f"`{ENTRY}` replaces `{task.entry}` of `{task.path.name}`: same constructor, same "
            f"state_dict, faster forward. Made and measured with cuagent on {day}.",
            f"Kernels: {kernels}; device: {task.device}.",
            "",
            "## Use",
            "",
            "```",
            f"pip install .     # then: from {name} import {ENTRY}",
            f"python check.py {task.path.name}   # compares it with the original",
            "```",
            "",
            "Without an argument `check.py` takes `reference.py`, the original. Not installed, "
            f"`from model_new import {ENTRY}` works with this folder on the path. Measured under "
            "`torch.no_grad()`; the kernels have no backward pass.",
            "",
            "A kernel is compiled on first use (" + _compiler(attempt) + ") and cached by content; "
            "libraries under `kernels/prebuilt/` are used on machines of the same kind.",
            "",
            "## Speed",
            "",
            *_speed(timing, score),
            "",
            "## Correctness",
            "",
            *_correctness(task, verdict),
            "",
            f"Attempt `{attempt.digest[:16]}`, task `{task.digest[:16]}`.",
            "",
        ]
    )


def _compiler(attempt: Attempt) -> str:
    needed = {"nvcc" if source.endswith(".cu") else "g++" for source in attempt.kernels}
    return "needs " + " and ".join(sorted(needed)) if needed else "no compiler needed"


def _speed(timing: Timing | None, score: Score | None) -> list[str]:
    if timing is None:
        return ["Not measured."]
    lines = [
        "Ratios come from pairs taken together, times are medians of all: they need not agree.",
        "",
    ]
    lines += ["| against | ratio | 95 % interval | its time | this |", "|---|---|---|---|---|"]
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
        lines.append("A quick measurement, for feedback: it is no score of record.")
    if timing.share is not None:
        lines.append(f"That is {timing.share:.0%} of the roofline.")
    lines += [f"Mind: {remark}" for remark in timing.remarks]
    if score is not None:
        lines.append(f"Milestone score: {score.reward} (of -1, 1, 2, 3).")
    return lines


def _correctness(task: Task, verdict: Verdict | None) -> list[str]:
    if verdict is None:
        return ["Not verified."]
    lines = [f"Verdict: {verdict.reason}. {verdict.detail}".rstrip()]
    lines.append(
        f"Precision: {verdict.precision or task.precision} (the task admits {task.precision}). "
        f"Isolation while judged: {verdict.tier}."
    )
    for rule, result in (("lax", verdict.lax), ("strict", verdict.strict)):
        if result is not None:
            word = "passed" if result.passed else "failed"
            lines.append(f"- {rule} rule: {word}, largest error {result.worst:.3g} of its bound")
    if verdict.draws:
        largest = max(verdict.draws, key=lambda draw: draw.max_error)
        lines.append(
            f"- largest absolute error against fp64 in {len(verdict.draws)} draws: "
            f"{largest.max_error:.3g} ({largest.kind} inputs)"
        )
    return lines


def time_text(seconds: float | None) -> str:
    """A time a call; a dash where there is none."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def versions_text(versions: dict[str, str]) -> str:
    """Behind the name of the machine."""
    return f" ({', '.join(f'{k} {v}' for k, v in versions.items())})" if versions else ""
