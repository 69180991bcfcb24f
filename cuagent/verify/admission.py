"""Check if a task can be certified, before any work is spent on it.

A verdict compares with the reference. "Accepted" means nothing if the reference gives no right
answer (random numbers, state kept between calls) or a trivial one (a constant, zeros, an unchanged
input). Trivial answers are tried under the same rules as a candidate. Not covered: if the task is
the one that the user meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.task import TaskError
from cuagent.verdict import on_inputs
from cuagent.verify.fitness.examine import NOISE
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.referee import Referee
from cuagent.verify.threads import one_thread_if_small

if TYPE_CHECKING:
    from torch import Tensor

EARLIER = "the answer to other inputs"
"""Name of the trivial answer that repeats the reference's output for the previous draw."""
TRIALS = (
    (Weights.OWN, Inputs.OWN),
    (Weights.OWN, Inputs.OWN),
    (Weights.OWN, Inputs.NORMAL),
    (Weights.SHAKEN, Inputs.OWN),
    (Weights.SHAKEN, Inputs.NORMAL),
)
"""(weights, inputs) kinds of the draws on which trivial answers are tested."""
ONE_PAIR = 1
"""Number of perturbation pairs in the sensitivity query when a trivial answer is tested.

One pair is enough: a jump of the reference that excuses a trivial answer shows in any pair.
"""


@dataclass(frozen=True)
class Admission:
    """Result of `admit` for one task: can a verdict certify an answer to it?"""

    task: str
    """Digest of the task."""
    reasons: tuple[str, ...]
    """Reasons why a verdict on this task would mean nothing; empty if it can be certified."""
    notes: tuple[str, ...]
    """Warnings for the user: properties of the task that make a verdict less strict than usual."""
    kinds: tuple[str, ...]
    """Kinds of inputs on which the reference gives usable outputs; a verdict draws only these."""
    longest_sum: int
    """Number of terms of the reference's longest sum."""
    fp64: bool
    """True if the reference runs in fp64, which the strict rule compares with."""
    settings: str = ""
    """torch's settings (TF32, deterministic mode, ...) of the reference and the baselines, as one
    line.
    """

    @property
    def certifiable(self) -> bool:
        """True if a verdict on this task is meaningful, which means that `reasons` is empty."""
        return not self.reasons

    @property
    def refusal(self) -> str:
        """One line that says why the task cannot be certified; "" if it can."""
        return f"not certifiable, because {'; '.join(self.reasons)}" if self.reasons else ""


def admit(referee: Referee, give_way: Callable[[], None] = lambda: None) -> Admission:
    """Examine a task before any candidate is judged; return reasons against a verdict, and notes.

    `give_way` is called whenever the device is idle; it releases the device lock if a timing waits
    for the device. Raises OracleLost.
    """
    notes: list[str] = []
    try:
        findings = referee.examine(give_way)
        notes = _notes(findings, referee)
        reasons = _reasons(findings, referee)
        if not reasons:
            with one_thread_if_small(referee.context):
                reasons = _answer_faults(referee)
    except TaskError as error:  # it ran when it was opened, but fails on some inputs
        reasons = [str(error)]
    return Admission(
        task=referee.task.digest,
        reasons=tuple(reasons),
        notes=tuple(notes),
        kinds=tuple(kind.value for kind in Inputs if kind in referee.facts.kinds),
        longest_sum=referee.facts.terms.longest,
        fp64=referee.facts.fp64,
        settings=referee.settings_line,
    )


def _reasons(findings: dict[str, Any], referee: Referee) -> list[str]:
    reasons = []
    if findings["random"]:
        names = ", ".join(findings["random"])
        reasons.append(f"the reference draws random numbers ({names}), although it is in eval mode")
    elif findings["changed_state"]:
        names = ", ".join(findings["changed_state"][:3])
        reasons.append(f"a call changes the reference's state ({names}) in eval mode")
    elif findings["noise"] > NOISE:
        reasons.append(
            "the reference returns different results for equal inputs "
            f"(relative difference {findings['noise']:.1g})"
        )
    elif reason := _hidden(findings):
        reasons.append(reason)
    if not referee.context.inputs.tensors():
        reasons.append("forward takes no tensors, so that every call computes the same")
    elif findings["constant"]:
        level = findings["level"]
        value = "" if level is None else f": on the task's own inputs it is {level:g} everywhere"
        reasons.append(f"the output does not depend on the inputs{value}")
    return reasons


def _hidden(findings: dict[str, Any]) -> str:
    """Return a sentence on hidden state or a clock that changes the reference's output; "" if none
    does.

    `findings` is the result of `fitness.hidden`.
    """
    if findings["draws"]:
        return f"the reference draws random numbers ({', '.join(findings['draws'])})"
    changes = ", ".join(findings["changes"][:3])
    match findings["depends_on"]:
        case "":
            return ""
        case "construction":
            return "two models with equal constructor arguments and seed give different results"
        case "clock":
            read = f" ({', '.join(findings['read'])})" if findings["read"] else ""
            return f"the output depends on the time or the process{read}"
        case "calls" if changes:
            return f"the reference changes {changes} in forward, which changes its output"
        case "calls":
            return "the output depends on earlier calls through state that is not in an attribute"
    return f"the reference changes {findings['later']} in forward, which changes later outputs"


def _notes(findings: dict[str, Any], referee: Referee) -> list[str]:
    notes = [referee.facts.training] if referee.facts.training else []
    if 0 < findings["noise"] <= NOISE:
        notes.append("the reference is deterministic only up to roundoff")
    if findings["changed_inputs"]:
        notes.append("the reference changes its inputs; a candidate may not")
    if findings["fixed"]:
        notes.append("get_inputs() returns equal inputs at every call; a verdict draws others too")
    if findings["changes"] and not findings["depends_on"]:
        names = ", ".join(findings["changes"][:3])
        calls = findings["calls"]
        notes.append(f"forward changes {names}; the output was the same in {calls} calls")
    if findings["opens"]:
        notes.append(f"forward opens files ({', '.join(findings['opens'][:3])})")
    for index in [] if findings["constant"] else findings["ignored"]:
        notes.append(f"input {index} has no influence on the output")
    for index in referee.facts.unvaried:
        notes.append(
            f"input {index} was never varied: get_inputs() always returns the same one, and the "
            "reference rejects all others that were tried; a candidate that ignores it may pass"
        )
    if names := ", ".join(referee.facts.unvaried_buffers):
        notes.append(
            f"the buffers {names} were never varied: they are not in the state_dict, or the "
            "reference rejects all other values that were tried"
        )
    if numbers := _constants(referee.facts.inputs):
        notes.append(
            f"the numbers among the inputs ({numbers}) were never varied: they are part of the task"
        )
    for index in findings["not_finite"]:
        notes.append(
            f"output {index} has NaN or Inf on the task's own inputs; their positions are compared"
        )
    if not referee.facts.fp64:
        notes.append("the reference does not run in fp64: its own precision is compared with")
    if Inputs.NORMAL not in referee.facts.kinds:
        notes.append(
            "the reference accepts no zero-mean inputs: precision cannot be judged tightly"
        )
    return notes


def _constants(spec: dict[str, Any]) -> str:
    """Return the Python numbers in a spec of forward's arguments, joined by commas; "" if there are
    none.
    """
    if spec["kind"] == "const":
        return repr(spec["value"]) if isinstance(spec["value"], int | float) else ""
    return ", ".join(filter(None, map(_constants, spec.get("items", ()))))


def _answer_faults(referee: Referee) -> list[str]:
    """Return reasons why the reference's outputs cannot serve as the right answer.

    Either equal inputs give different outputs, or a trivial answer passes the strict rule.
    """
    if kind := _nondeterministic_kind(referee):
        return [f"the reference's own answers to equal inputs differ too much to pass ({kind})"]
    return [f"a trivial answer would pass: {name}" for name in _passing(referee)]


def _nondeterministic_kind(referee: Referee) -> str:
    """Call the reference twice on equal inputs; return the kind of inputs on which the outputs
    differ.

    The outputs differ if the first ones fail the strict rule against the second ones. Returns "" if
    they agree on all kinds.
    """
    seeds = Seeds()
    for kind in (Inputs.OWN, Inputs.NORMAL):
        if kind not in referee.facts.kinds:
            continue
        seed, draw = seeds.draw(), seeds.draw()
        earlier, _ = referee.ask(Weights.OWN, seed, kind, draw, spread=False)
        previous = [tensor.clone() for tensor in earlier.declared]
        expected, _ = referee.ask(Weights.OWN, seed, kind, draw)
        if not referee.judged(previous, expected, kind, referee.sensitivity(draw)).passed:
            return on_inputs(kind)
    return ""


def _passing(referee: Referee) -> list[str]:
    """Return the names of the trivial answers that pass the strict rule on every draw of TRIALS."""
    passing: list[str] | None = None
    previous: list[Tensor] | None = None
    seeds = Seeds()
    seed = seeds.draw()
    for weights, kind in TRIALS:
        if kind not in referee.facts.kinds:
            continue
        draw = seeds.draw()
        expected, inputs = referee.ask(weights, seed, kind, draw)
        sensitivity = referee.sensitivity(draw, ONE_PAIR)
        passing = [
            name
            for name, answer in _trivial_answers(expected.declared, inputs, previous).items()
            if passing is None or name in passing
            if referee.judged(answer, expected, kind, sensitivity).passed
        ]
        if previous is None:
            passing.append(EARLIER)  # the first round has no earlier answer
        if not passing:
            break
        previous = [tensor.clone() for tensor in expected.declared]
    return passing or []


def _trivial_answers(
    right: Sequence[Tensor], inputs: Sequence[Tensor], previous: Sequence[Tensor] | None
) -> dict[str, list[Tensor]]:
    """Return the outputs of candidates that do no work, by name: zeros, ones, an input, an old
    answer.

    They have the shapes of `right`. `previous` is the reference's output on the previous draw; None
    on the first draw.
    """
    answers = {
        # Expanded views: each takes the memory of one number.
        "zero": [tensor.new_zeros(()).expand(tensor.shape) for tensor in right],
        "one": [tensor.new_ones(()).expand(tensor.shape) for tensor in right],
    }
    if previous is not None:
        answers[EARLIER] = list(previous)
    if len(right) == 1:
        for index, tensor in enumerate(inputs):
            if tensor.numel() == right[0].numel() and tensor.dtype == right[0].dtype:
                reshaped = tensor.reshape(-1).view_as(right[0])
                answers[f"input {index} itself"] = [reshaped]
    return answers
