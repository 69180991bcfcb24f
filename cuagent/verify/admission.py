"""Whether a task can be certified at all, found out before any work is spent on it.

A verdict compares with the reference; where that gives no right answer (random numbers, state kept
between calls) or one that anybody has (a constant, zeros, an input handed back), "accepted" would
say nothing. Null answers are tried under the very rules that a candidate is judged by.
Not covered: whether the task is the one that the user meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.task import TaskError
from cuagent.verify.fitness.examine import NOISE
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.referee import Referee

if TYPE_CHECKING:
    from torch import Tensor

EARLIER = "the answer to other inputs"
TRIALS = (
    (Weights.OWN, Inputs.OWN),
    (Weights.OWN, Inputs.OWN),
    (Weights.OWN, Inputs.NORMAL),
    (Weights.SHAKEN, Inputs.OWN),
    (Weights.SHAKEN, Inputs.NORMAL),
)
ONE_PAIR = 1
"""Of perturbations in doubt about a null answer: jumps that excuse one show in any."""


@dataclass(frozen=True)
class Admission:
    """What was found about a task."""

    task: str
    """Digest."""
    reasons: tuple[str, ...]
    """Each says why a verdict on this task would mean nothing; empty: it can be certified."""
    notes: tuple[str, ...]
    """What a verdict will not be able to judge as it usually does."""
    kinds: tuple[str, ...]
    """Of inputs that the reference takes."""
    longest_sum: int
    fp64: bool
    """Whether the reference runs in fp64, which the strict rule compares with."""

    @property
    def certifiable(self) -> bool:
        return not self.reasons

    @property
    def refusal(self) -> str:
        """One line for a task that cannot be certified; nothing for one that can."""
        return f"not certifiable, because {'; '.join(self.reasons)}" if self.reasons else ""


def admit(referee: Referee) -> Admission:
    """Judge the task of an opened referee. Raises OracleLost."""
    notes: list[str] = []
    try:
        findings = referee.examine()
        notes = _notes(findings, referee)
        reasons = _reasons(findings, referee) or _tried(referee)
    except TaskError as error:  # it ran once, when it was opened, and does not on every input
        reasons = [str(error)]
    return Admission(
        task=referee.task.digest,
        reasons=tuple(reasons),
        notes=tuple(notes),
        kinds=tuple(kind.value for kind in Inputs if kind in referee.context.kinds),
        longest_sum=referee.context.terms.longest,
        fp64=referee.about["fp64"],
    )


def _reasons(findings: dict[str, Any], referee: Referee) -> list[str]:
    reasons = []
    if findings["random"]:
        names = ", ".join(findings["random"])
        reasons.append(f"the reference draws random numbers ({names}), although it is in eval mode")
    elif findings["changed_state"]:
        names = ", ".join(findings["changed_state"][:3])
        reasons.append(f"a call changes what the reference keeps ({names}), in eval mode")
    elif findings["noise"] > NOISE:
        reasons.append(
            f"the reference gives different results for equal inputs ({findings['noise']:.1g})"
        )
    elif said := _hidden(findings):
        reasons.append(said)
    if not referee.context.inputs.tensors():
        reasons.append("it takes no tensors, so that every call asks for the same")
    elif findings["constant"]:
        level = findings["level"]
        known = "" if level is None else f": on the task's own it is {level:g} everywhere"
        reasons.append(f"the output does not depend on the inputs{known}")
    return reasons


def _hidden(findings: dict[str, Any]) -> str:
    """What the answer hangs on that no candidate is given."""
    if findings["draws"]:
        return f"the reference draws random numbers ({', '.join(findings['draws'])})"
    changes = ", ".join(findings["changes"][:3])
    match findings["depends_on"]:
        case "":
            return ""
        case "construction":
            return "two models that are constructed alike give different results"
        case "clock":
            read = f" ({', '.join(findings['read'])})" if findings["read"] else ""
            return f"the output depends on the time or the process{read}"
        case "calls" if changes:
            return f"the reference changes {changes} in forward, and its output with it"
        case "calls":
            return "the output depends on calls before it, in a way that no attribute shows"
    return f"the reference changes {findings['later']} in forward, and later calls answer otherwise"


def _notes(findings: dict[str, Any], referee: Referee) -> list[str]:
    notes = [referee.about["training"]] if referee.about["training"] else []
    if 0 < findings["noise"] <= NOISE:
        notes.append("the reference is not deterministic to the last digit")
    if findings["changed_inputs"]:
        notes.append("the reference changes its inputs; a candidate may not")
    if findings["fixed"]:
        notes.append("get_inputs gives the same at every call; a verdict draws others besides")
    if findings["changes"] and not findings["depends_on"]:
        names = ", ".join(findings["changes"][:3])
        calls = findings["calls"]
        notes.append(f"forward changes {names}; the output was the same in {calls} calls")
    if findings["opens"]:
        notes.append(f"forward opens files ({', '.join(findings['opens'][:3])})")
    for index in [] if findings["constant"] else findings["ignored"]:
        notes.append(f"input {index} has no influence on the output")
    for index in referee.about["unvaried"]:
        notes.append(
            f"input {index} was never varied: get_inputs() gives it alike in every draw, and the "
            "reference accepts no other that was tried; a candidate that ignores it may pass"
        )
    if names := ", ".join(referee.about["unvaried_buffers"]):
        notes.append(
            f"never varied: the buffers {names}; they are not in the state dict, or the reference "
            "accepts no other values that were tried"
        )
    if numbers := _constants(referee.about["inputs"]):
        notes.append(
            f"the numbers among the inputs ({numbers}) were never varied: they are part of the task"
        )
    for index in findings["not_finite"]:
        notes.append(f"output {index} has NaN or Inf on the task's own inputs; places are compared")
    if not referee.about["fp64"]:
        notes.append("the reference does not run in fp64: its own precision is the yardstick")
    if Inputs.NORMAL not in referee.context.kinds:
        notes.append("it takes no zero-mean inputs: precision cannot be judged tightly")
    return notes


def _constants(spec: dict[str, Any]) -> str:
    """The Python numbers among the inputs, in order; nothing where there are none."""
    if spec["kind"] == "const":
        return repr(spec["value"]) if isinstance(spec["value"], int | float) else ""
    return ", ".join(filter(None, map(_constants, spec.get("items", ()))))


def _tried(referee: Referee) -> list[str]:
    """What is wrong with the answers themselves, by the rule for candidates."""
    if unsteady := _unsteady(referee):
        return [f"equal inputs give results that the rule would not take for equal ({unsteady})"]
    return [f"{name} would pass for the answer" for name in _passing(referee)]


def _unsteady(referee: Referee) -> str:
    """The kind of inputs on which the reference fails for its own answer given before, or ""."""
    seeds = Seeds()
    for kind in (Inputs.OWN, Inputs.NORMAL):
        if kind not in referee.context.kinds:
            continue
        seed, draw = seeds.draw(), seeds.draw()
        earlier, _ = referee.ask(Weights.OWN, seed, kind, draw)
        before = [tensor.clone() for tensor in earlier.declared]
        expected, _ = referee.ask(Weights.OWN, seed, kind, draw)
        if not referee.judged(before, expected, kind, draw).passed:
            return f"{kind} inputs"
    return ""


def _passing(referee: Referee) -> list[str]:
    """Null answers that the strict rule accepts on every draw."""
    standing: list[str] | None = None
    before: list[Tensor] | None = None
    seeds = Seeds()
    seed = seeds.draw()
    for weights, kind in TRIALS:
        if kind not in referee.context.kinds:
            continue
        draw = seeds.draw()
        expected, inputs = referee.ask(weights, seed, kind, draw)
        standing = [
            name
            for name, answer in _nulls(expected.declared, inputs, before).items()
            if standing is None or name in standing
            if referee.judged(answer, expected, kind, draw, ONE_PAIR).passed
        ]
        if before is None:
            standing.append(EARLIER)  # nothing to hand back yet
        if not standing:
            break
        before = [tensor.clone() for tensor in expected.declared]
    return standing or []


def _nulls(
    right: Sequence[Tensor], inputs: Sequence[Tensor], before: Sequence[Tensor] | None
) -> dict[str, list[Tensor]]:
    """Answers that take no work, in the form of the right one."""
    import torch

    answers = {
        "zero": [torch.zeros_like(tensor) for tensor in right],
        "one": [torch.ones_like(tensor) for tensor in right],
    }
    if before is not None:
        answers[EARLIER] = list(before)
    if len(right) == 1:
        for index, tensor in enumerate(inputs):
            if tensor.numel() == right[0].numel() and tensor.dtype == right[0].dtype:
                handed = tensor.reshape(-1).view_as(right[0])
                answers[f"input {index} itself"] = [handed]
    return answers
