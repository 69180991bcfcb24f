"""Collect the facts about a task that a verdict needs: layouts, sums, kinds of inputs.

The reference runs on the task's own inputs: observed, in fp64, traced, with larger mask fills,
timed; and on each kind of inputs. Runs in the oracle's process. Not covered: if the reference is
fit to judge by (`fitness.examine`, `fitness.hidden`), which is a separate request.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.task import (
    Device,
    Reference,
    TaskError,
    TorchSettings,
    check_runs,
    flatten,
    read_settings,
    training_note,
)
from cuagent.task.memory import large
from cuagent.task.settings import baseline_settings
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.ranges import ends_of, ranges_of
from cuagent.verify.inputs.repertoire import ReferenceRuns, Repertoire, repertoire, with_fixed
from cuagent.verify.inputs.varied import fixed_of
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.acceptance import Acceptance, acceptance
from cuagent.verify.oracle.facts import Layouts, TaskFacts
from cuagent.verify.oracle.places import find_places
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.rules.bounds import coarsest, reach
from cuagent.verify.tensors import UNIT, is_inexact
from cuagent.verify.trace.reductions import Terms, terms
from cuagent.verify.trace.roles import Roles, roles_of
from cuagent.verify.trace.selections import ReferenceTrace, trace_reference
from cuagent.verify.trace.tables import tables
from cuagent.worker.memory.arena import layout_of, settle

if TYPE_CHECKING:
    from torch import Tensor, nn

MIN_RANGE_DRAWS, MAX_RANGE_DRAWS = 8, 256
"""Least and largest number of own draws from which the range of inputs is taken; small inputs get
more draws."""
MAX_RANGE_ELEMENTS = 1 << 18
"""Number of elements in all these draws."""


@dataclass(frozen=True)
class Described:
    """A task whose reference has run, with all that the oracle needs to answer."""

    reference: TwoPrecisions
    """The reference, with the model of seed 0 so far."""
    coarsest: float
    """Unit roundoff of the coarsest output."""
    repertoire: Repertoire
    roles: Roles
    """Roles of its parameters and buffers."""
    accepts: Acceptance | None
    """Test for other integers than the task draws; None if it is not needed or not possible."""
    facts: TaskFacts
    """Facts that the referee gets."""


@dataclass(frozen=True)
class _FirstRun:
    """Results of the reference's first run."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    nested: tuple[Any, Any]
    """Specs of inputs and outputs."""
    terms: Terms
    peak: int
    """Bytes of GPU memory that the reference needs."""
    writes_inputs: bool
    """True if the reference writes to its inputs."""


def describe(opened: Reference) -> Described:
    """Run the reference and return the facts about it. Raises TaskError if it does not run."""
    model = opened.model(0)
    check_runs(opened)
    own = read_settings()
    settings = baseline_settings(own, opened.task.precision)
    settings.apply()
    first = _first_run(opened, model, settings)
    inputs, results, (spec, output_spec) = first.inputs, first.outputs, first.nested
    size = sum(x.nbytes for x in (*inputs, *results))
    is_large = large(size, opened.task.device.value)
    reference = TwoPrecisions(
        opened, model, spec, copies_inputs=first.writes_inputs or not is_large
    )
    init = _init_form(opened)
    unit = coarsest(results, opened.task.precision, first.terms.unit)
    reference.roundoff = reach(first.terms.signed, unit)
    reference.inspect(inputs, results)
    trace = trace_reference(lambda: reference.forward(inputs))
    reference.casts_to_integers = trace.casts
    reference.detect_mask_fills(inputs)
    call_s = _seconds(reference, inputs)
    runs = ReferenceRuns(
        reference.forward,
        lambda inputs: reference.forward_fp64(inputs).outputs,
        reference.discrete,
        reference.within_range,
        reference.fills_hidden if reference.has_mask_fills else None,
    )
    samples = _own_samples(reference, inputs)
    sizes = tables(lambda: reference.forward(inputs), inputs)
    ranges, bits = ranges_of(samples, sizes), first.terms.fraction_bits
    chosen = repertoire(inputs, ranges, trace, runs, call_s, ends_of(samples), bits)
    fixed = fixed_of(samples, sizes)
    accepts = acceptance(reference, model, inputs, call_s) if any(fixed) else None
    chosen = with_fixed(chosen, fixed, inputs, accepts, call_s)
    roles = roles_of(model, lambda: reference.forward(inputs))
    state = model.state_dict()
    facts = TaskFacts(
        inputs=spec,
        output=output_spec,
        init=init,
        names=tuple(_parameters(model)),
        training=training_note(opened.task, model),
        traced=tuple(number for number, traced in enumerate(trace.traced) if traced),
        terms=first.terms,
        peak=first.peak,
        fp64=reference.fp64,
        call_s=call_s,
        large=is_large,
        kinds=tuple(chosen.kinds),
        unvaried=tuple(_unvaried(chosen, samples)),
        unvaried_buffers=tuple(roles.unvaried),
        grown=tuple(_grown(roles, state, chooses=bool(trace.selections))),
        sweep_counts=dict(chosen.sweep_counts),
        state=tuple(state),
        layouts=_layouts(state, inputs, results, trace),
        settings=own,
    )
    return Described(reference, unit, chosen, roles, accepts, facts)


def _first_run(reference: Reference, model: nn.Module, settings: TorchSettings) -> _FirstRun:
    import torch

    device = reference.task.device
    arguments = reference.inputs(0)
    inputs, spec = flatten(arguments, "inputs")
    peak = _peak(device)
    before = [x.clone() for x in inputs]
    outputs: list[Any] = []
    given = [x for x in (*inputs, *model.parameters()) if is_inexact(x)]
    finest = min((torch.finfo(x.dtype).eps / 2 for x in given), default=UNIT)

    def unit_of(kind: str, dtype: torch.dtype) -> float:
        if dtype in (torch.float32, torch.complex64):
            return settings.unit(kind, device)
        # Coarser operands than the inputs come from autocast, or from a cast in the module.
        return float(unit) if (unit := torch.finfo(dtype).eps / 2) > finest else UNIT

    sums = terms(lambda: outputs.append(model(*arguments)), unit_of)
    results, output_spec = flatten(outputs.pop(), "output")
    # NaN does not equal itself, so it counts as written, which only costs copies.
    writes_inputs = not all(map(torch.equal, before, inputs))
    peak = max(peak, _peak(device) - sum(x.nbytes for x in before))
    return _FirstRun(inputs, results, (spec, output_spec), sums, peak, writes_inputs)


def _peak(device: Device) -> int:
    """Return the peak of the allocated GPU memory so far, in bytes."""
    import torch

    return torch.cuda.max_memory_allocated() if device is Device.CUDA else 0


def _parameters(model: nn.Module) -> list[str]:
    """Return the names of forward's parameters that a call can give by position."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a builtin: its arguments have no names
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_position]


def _init_form(reference: Reference) -> Any:
    """Return the spec of the constructor's arguments. Raises TaskError if one is a tensor."""
    positional, named = reference.init_args
    tensors, spec = flatten([list(positional), named])
    if tensors:
        raise TaskError(
            f"{reference.task.path}: get_init_inputs() returns a tensor; return plain values only"
        )
    return spec


def _layouts(
    state: dict[str, Tensor], inputs: list[Tensor], results: list[Tensor], trace: ReferenceTrace
) -> Layouts:
    """Return the layouts of the arenas that the referee lends."""
    places = find_places(trace, trace, ())
    elements = [tensor for each in places for tensor in each.tensors]
    chooses = any(selection.indexed for selection in trace.selections)
    tied = results if chooses else []
    return Layouts(
        inputs=layout_of(inputs),
        output=layout_of(results, dense=True),
        precise=layout_of(results, dense=True, wide=True),
        places=layout_of(elements, dense=True),
        tied=layout_of(tied, dense=True, wide=True),
        reordered=layout_of(tied, dense=True),
        state=layout_of(list(state.values()), dense=True),
    )


def _seconds(reference: TwoPrecisions, inputs: list[Tensor]) -> float:
    """Return the approximate seconds of one call."""
    device = reference.task.device.value
    settle(device)
    start = time.perf_counter()
    reference.forward(inputs)
    settle(device)
    return time.perf_counter() - start


def _grown(roles: Roles, state: dict[str, Tensor], *, chooses: bool) -> list[Weights]:
    """Return the kinds of grown weights that give other values than the kinds before them.

    `chooses`: the reference selects elements, and added scores below zero may decide which.
    """
    past = bool(roles.clamped) or roles.has_few_numbers(state) or (chooses and bool(roles.added))
    return [Weights.GROWN] * roles.grows + [Weights.PAST] * past


def _unvaried(chosen: Repertoire, samples: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the numbers of the inputs that are equal in every draw of every kind."""
    import torch

    kinds = set(chosen.kinds)
    if len(samples) == 1:
        return []  # large floating inputs, which the other kinds replace
    masks = {Inputs.MASKS, Inputs.EMPTY, Inputs.SINGLE} & kinds
    integers = {Inputs.EXTREMES, Inputs.ALIKE, Inputs.EVERY} & kinds
    unvaried = []
    for number, (first, *others) in enumerate(zip(*samples, strict=True)):
        if not first.numel() or any(not torch.equal(first, other) for other in others):
            continue
        fixed = chosen.fixed[number]
        if first.is_floating_point():
            varies = bool(kinds & {Inputs.NORMAL, Inputs.ONE_SIGNED, Inputs.ENDS, Inputs.TAILS})
        elif first.dtype is torch.bool:
            varies = bool(masks)
        else:
            varies = bool(integers and chosen.ranges[number])
        if not varies and not (fixed and fixed.changes):
            unvaried.append(number)
    return unvaried


def _own_samples(reference: TwoPrecisions, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return own draws that show the ranges of inputs; at most two if only floating inputs without
    ends."""
    domains = any(ends_of([inputs]))
    numbers = max(1, sum(tensor.numel() for tensor in inputs))
    if all(is_inexact(tensor) for tensor in inputs) and not domains:
        few = numbers <= MAX_RANGE_ELEMENTS
        return [list(inputs), reference.own_inputs(1)] if few else [list(inputs)]
    count = max(MIN_RANGE_DRAWS, min(MAX_RANGE_DRAWS, MAX_RANGE_ELEMENTS // numbers))
    return [reference.own_inputs(seed) for seed in range(count)]
