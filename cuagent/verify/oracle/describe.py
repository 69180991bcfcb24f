"""Collect the facts about a task that a verdict needs: layouts, sums, kinds of inputs.

The reference runs on the task's own inputs: plainly, in fp64, with its operators traced, with
larger mask fills, and timed. It also runs on each kind of inputs. Runs in the oracle's process. Not
covered: the tests if the reference is fit to judge by (`fitness.examine`, `fitness.hidden`), which
are a separate request.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from cuagent.task.memory import as_float32, large, total
from cuagent.task.settings import baseline_settings
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.ranges import ends_of, ranges_of
from cuagent.verify.inputs.reference_runs import ReferenceRuns
from cuagent.verify.inputs.repertoire import Repertoire, repertoire, with_fixed
from cuagent.verify.inputs.varied import fixed_of
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle.acceptance import Acceptance, acceptance
from cuagent.verify.oracle.convolutions import LEAST_LIMIT, SHARE, Convolutions
from cuagent.verify.oracle.facts import Layouts, TaskFacts
from cuagent.verify.oracle.places import find_places
from cuagent.verify.oracle.slice_checks import find_slicing
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.rules.bounds import coarsest, reach
from cuagent.verify.tensors import UNIT, is_inexact
from cuagent.verify.trace.live_bytes import LiveBytes
from cuagent.verify.trace.reductions import Terms, terms
from cuagent.verify.trace.reference_trace import ReferenceTrace, trace_reference
from cuagent.verify.trace.roles import Roles, roles_of
from cuagent.verify.trace.tables import tables
from cuagent.worker.memory.arena import layout_of, synchronize
from cuagent.worker.memory.fingerprint import Fingerprint
from cuagent.worker.memory.heap import keep_memory, return_memory

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn

MIN_RANGE_DRAWS, MAX_RANGE_DRAWS = 8, 256
"""Least and largest number of get_inputs calls from which the ranges of the inputs are estimated.

Small inputs get more calls.
"""
MAX_RANGE_ELEMENTS = 1 << 18
"""Largest number of elements that all get_inputs calls for the ranges return together.

MIN_RANGE_DRAWS calls may return more.
"""
MOST_PLANNED = 0.8
"""Largest share of the device's memory for a verdict in which fp64 convolutions take memory for
speed."""
TIMED_CALLS, TIMED_CALLS_S = 5, 0.5
"""Number of timed calls, of which the fastest counts, and seconds after which none starts any
more.
"""


@dataclass(frozen=True)
class Described:
    """A task with its models and all data that the oracle needs to answer requests."""

    reference: TwoPrecisions
    """The reference in both precisions; its weights are still those of seed 0."""
    coarsest: float
    """Unit roundoff of the coarsest honest arithmetic (`bounds.coarsest`)."""
    repertoire: Repertoire
    roles: Roles
    """Roles of the reference's parameters and buffers."""
    accepts: Acceptance | None
    """Test if the reference accepts integers that get_inputs does not return.

    None if a task has no integers to vary, or if the test is not possible.
    """
    facts: TaskFacts
    """Facts that the oracle sends to the referee."""

    def own_sample(self, seed: int) -> list[Tensor]:
        """Return inputs from get_inputs on which the reference is examined; for a large task a
        slice of them.
        """
        return sample_of(self.reference, self.reference.own_inputs(seed))


def sample_of(reference: TwoPrecisions, inputs: list[Tensor]) -> list[Tensor]:
    """Return copies of the first slice of large inputs; return other inputs unchanged."""
    if reference.slicing is None:
        return inputs
    first = next(reference.slicing.ranges())
    return [x.clone() for x in reference.slicing.of_inputs(inputs, *first)]


@dataclass(frozen=True)
class _FirstRun:
    """Results of the reference's first run."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    nested: tuple[Any, Any]
    """Specs of the inputs and of the outputs."""
    terms: Terms
    peak: int
    """Peak bytes of one call: weights, inputs, intermediate results and outputs."""
    writes_inputs: bool
    """True if the reference writes to its inputs."""


def describe(
    opened: Reference, budget: int | None = None, before_call: Callable[[], None] | None = None
) -> Described:
    """Run the reference and return the facts about the task. Raises TaskError if it does not run.

    `budget` limits the bytes of the device's memory. `before_call` is called before each run of the
    reference.
    """
    model = opened.model(0)
    check_runs(opened)
    own = read_settings()
    settings = baseline_settings(own, opened.task.precision)
    settings.apply()
    first = _first_run(opened, model, settings, budget)
    inputs, results, (spec, output_spec) = first.inputs, first.outputs, first.nested
    device = opened.task.device.value
    is_large = large(as_float32((*inputs, *results)), device, budget)
    reference = TwoPrecisions(
        opened, model, spec, copies_inputs=first.writes_inputs or not is_large
    )
    reference.before_call = before_call
    if opened.task.device is Device.CUDA:
        reference.convolutions = Convolutions(int(SHARE * total(device, budget)))
    else:
        reference.convolutions = Convolutions(LEAST_LIMIT, only_depthwise=True)
    init = _init_form(opened)
    unit = coarsest(results, opened.task.precision, first.terms.unit)
    reference.roundoff = reach(first.terms.signed, unit)
    if not (is_large and find_slicing(reference, inputs, results, total(device, budget))):
        reference.inspect(inputs, results)
    reference.convolutions.end_search()
    call_s = _seconds(reference, inputs)
    samples = _own_samples(reference, inputs, is_large=is_large)
    sizes = tables(lambda: reference.forward(inputs), inputs)
    ranges, fixed = ranges_of(samples, sizes), fixed_of(samples, sizes)
    ends = ends_of(samples[:1] if is_large else samples)
    sample = sample_of(reference, inputs)
    trace = trace_reference(lambda: reference.forward(sample))
    reference.casts_to_integers = trace.casts
    reference.detect_mask_fills(sample)
    runs = ReferenceRuns(
        reference.forward,
        lambda inputs: reference.forward_fp64(inputs).outputs,
        reference.discrete,
        reference.within_range,
        reference.fills_hidden if reference.has_mask_fills else None,
    )
    bits = first.terms.fraction_bits
    chosen = repertoire(sample, ranges, trace, runs, call_s, ends, bits)
    accepts = acceptance(reference, model, inputs, call_s) if any(fixed) else None
    chosen = with_fixed(chosen, fixed, inputs, accepts, call_s)
    roles = roles_of(model, lambda: reference.forward(sample))
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
        layouts=_layouts(state, inputs, results, trace, lean=is_large),
        settings=own,
        slices=0 if reference.slicing is None else len(list(reference.slicing.ranges())),
        columns=reference.convolutions.memory,
    )
    facts = _with_fitting_columns(facts, reference, budget)
    return Described(reference, unit, chosen, roles, accepts, facts)


def _with_fitting_columns(
    facts: TaskFacts, reference: TwoPrecisions, budget: int | None
) -> TaskFacts:
    """Return the facts; where a verdict would take most of the device's memory, let cuDNN compute
    all convolutions, which takes less of it."""
    device = reference.task.device
    needed = MemoryPlan.of(facts, device, budget).verdict
    if not facts.columns or needed <= MOST_PLANNED * total(device.value, budget):
        return facts
    reference.convolutions.limit = LEAST_LIMIT
    return replace(facts, columns=0)


def _first_run(
    reference: Reference, model: nn.Module, settings: TorchSettings, budget: int | None
) -> _FirstRun:
    import torch

    device = reference.task.device
    arguments = reference.inputs(0)
    inputs, spec = flatten(arguments, "inputs")
    peak = _peak(device)
    is_large = large(sum(x.nbytes for x in inputs), device.value, budget)
    if is_large:
        return_memory()
    else:
        keep_memory()
    # A large task's inputs are compared by a fingerprint, which takes no memory.
    key = Fingerprint.random(device.value) if is_large else None
    before = [x.clone() for x in inputs] if key is None else []
    prints = [key.of(x) for x in inputs] if key is not None else []
    outputs: list[Any] = []
    given = [x for x in (*inputs, *model.parameters()) if is_inexact(x)]
    finest = min((torch.finfo(x.dtype).eps / 2 for x in given), default=UNIT)

    def unit_of(kind: str, dtype: torch.dtype) -> float:
        if dtype in (torch.float32, torch.complex64):
            return settings.unit(kind, device)
        # Coarser operands than the inputs come from autocast, or from a cast in the module.
        return float(unit) if (unit := torch.finfo(dtype).eps / 2) > finest else UNIT

    live = LiveBytes()
    sums = terms(lambda: outputs.append(live.measure(lambda: model(*arguments))), unit_of)
    results, output_spec = flatten(outputs.pop(), "output")
    # NaN does not equal itself, so it counts as written, which only costs copies.
    writes_inputs = (
        not all(map(torch.equal, before, inputs))
        if key is None
        else prints != [key.of(x) for x in inputs]
    )
    peak = max(peak, _peak(device) - sum(x.nbytes for x in before))
    peak = peak or sum(x.nbytes for x in (*model.state_dict().values(), *inputs)) + live.peak
    return _FirstRun(inputs, results, (spec, output_spec), sums, peak, writes_inputs)


def _peak(device: Device) -> int:
    """Return the peak of the allocated GPU memory so far in bytes; 0 on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if device is Device.CUDA else 0


def _parameters(model: nn.Module) -> list[str]:
    """Return the names of forward's parameters that can be passed by position."""
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
    state: dict[str, Tensor],
    inputs: list[Tensor],
    results: list[Tensor],
    trace: ReferenceTrace,
    *,
    lean: bool,
) -> Layouts:
    """Return the layouts of the arenas that the referee shares with the oracle.

    With `lean` the spread is stored in bf16 and the sensitivity in fp32, although both are computed
    in fp64: rules use only the magnitude of the spread, but subtract the sensitivity.
    """
    import torch

    places = find_places(trace, trace, ())
    elements = [tensor for each in places for tensor in each.tensors]
    chooses = any(selection.indexed for selection in trace.selections)
    tied = results if chooses else []
    spread = [_without_memory(x, torch.bfloat16) for x in results] if lean else results
    moved = [_without_memory(x, torch.float32) for x in results] if lean else results
    return Layouts(
        inputs=layout_of(inputs),
        output=layout_of(results, dense=True),
        precise=layout_of(results, dense=True, wide=True),
        spread=layout_of(spread, dense=True, wide=not lean),
        moved=layout_of(moved, dense=True, wide=not lean),
        places=layout_of(elements, dense=True),
        tied=layout_of(moved if chooses else [], dense=True, wide=not lean),
        reordered=layout_of(tied, dense=True),
        state=layout_of(list(state.values()), dense=True),
    )


def _without_memory(tensor: Tensor, dtype: dtype) -> Tensor:
    """Return a meta tensor with the shape of `tensor`, for a layout.

    Its dtype is `dtype` for a real tensor, complex64 for a complex one, unchanged for integers.
    """
    import torch

    if not is_inexact(tensor):
        dtype = tensor.dtype
    elif tensor.is_complex():
        dtype = torch.complex64
    return torch.empty_like(tensor, dtype=dtype, device="meta")


def _seconds(reference: TwoPrecisions, inputs: list[Tensor]) -> float:
    """Return the seconds of the fastest of TIMED_CALLS calls.

    The number of draws depends on this time, and one call on a busy machine may take a hundred
    times as long as the next.
    """
    device = reference.task.device.value
    times: list[float] = []
    while len(times) < TIMED_CALLS and sum(times) < TIMED_CALLS_S:
        synchronize(device)
        start = time.perf_counter()
        reference.forward(inputs)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _grown(roles: Roles, state: dict[str, Tensor], *, chooses: bool) -> list[Weights]:
    """Return the kinds of grown weights that this model needs: GROWN, PAST, both or none.

    `chooses` is True if the reference selects elements; added scores below zero may then decide
    which.
    """
    past = bool(roles.clamped) or roles.has_few_numbers(state) or (chooses and bool(roles.added))
    return [Weights.GROWN] * roles.grows + [Weights.PAST] * past


def _unvaried(chosen: Repertoire, samples: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the indices of the inputs that are equal in every draw of every kind.

    `samples` are several results of get_inputs.
    """
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


def _own_samples(
    reference: TwoPrecisions, inputs: Sequence[Tensor], *, is_large: bool
) -> list[list[Tensor]]:
    """Return results of get_inputs from which the ranges of the inputs are estimated.

    If all inputs are floating and unbounded (`ends_of`), one or two are enough. For a large task it
    is one, plus the integers of a second, because memory has no room for more.
    """
    if is_large:
        if all(map(is_inexact, inputs)):
            return [list(inputs)]
        second = zip(inputs, reference.own_inputs(1), strict=True)
        return [list(inputs), [x if is_inexact(x) else y for x, y in second]]
    domains = any(ends_of([inputs]))
    numbers = max(1, sum(tensor.numel() for tensor in inputs))
    if all(is_inexact(tensor) for tensor in inputs) and not domains:
        few = numbers <= MAX_RANGE_ELEMENTS
        return [list(inputs), reference.own_inputs(1)] if few else [list(inputs)]
    count = max(MIN_RANGE_DRAWS, min(MAX_RANGE_DRAWS, MAX_RANGE_ELEMENTS // numbers))
    return [reference.own_inputs(seed) for seed in range(count)]
