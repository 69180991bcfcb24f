"""What the oracle says of a task before anything is judged by it: forms, sums, kinds of inputs.

The reference runs here on the task's own inputs: watched, in fp64, followed, with its marks further
out, by the clock; and on each kind of inputs. Runs in the oracle's process. Not covered: whether it
is fit to be judged by (`examine`, `hidden`), which is asked apart.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from cuagent.task import Device, Reference, TaskError, check_runs, flatten, training_note
from cuagent.task.memory import large
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.ranges import ends_of, ranges_of
from cuagent.verify.inputs.repertoire import ReferenceRuns, Repertoire, repertoire, with_fixed
from cuagent.verify.inputs.varied import fixed_of
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.acceptance import Acceptance, acceptance
from cuagent.verify.oracle.places import find_places
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.rules.bounds import coarsest, reach
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.reductions import Terms, terms
from cuagent.verify.trace.roles import Roles, roles_of
from cuagent.verify.trace.selections import ReferenceTrace, trace_reference
from cuagent.verify.trace.tables import tables
from cuagent.worker.memory.arena import layout_of, settle

if TYPE_CHECKING:
    from torch import Tensor, nn

RANGE_DRAWS, MOST_DRAWS = 8, 256
"""Own draws in which the range of inputs is looked for, the more the smaller they are."""
LOOKED_AT = 1 << 18
"""Numbers in all of these."""


@dataclass(frozen=True)
class Described:
    """A task whose reference has run."""

    reference: TwoPrecisions
    """The model of seed 0, so far."""
    terms: Terms
    """Of the longest sum."""
    coarsest: float
    """Unit roundoff of the coarsest output."""
    large: bool
    """Whether the task's tensors take much of the device."""
    repertoire: Repertoire
    roles: Roles
    """Of its parameters and buffers."""
    takes: Acceptance | None
    """Whether the reference accepts other integers than its task draws."""
    about: dict[str, Any]
    """What the referee is told, in JSON."""


@dataclass(frozen=True)
class _FirstRun:
    """What the first run of a reference shows."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    nested: tuple[Any, Any]
    """How inputs and outputs are nested."""
    terms: Terms
    peak: int
    """Bytes of the GPU's memory that the reference needs."""
    writes: bool
    """Whether it writes to its inputs."""


def describe(given: Reference) -> Described:
    """Raises TaskError where the reference does not run."""
    model = given.model(0)
    check_runs(given)
    first = _first_run(given, model)
    inputs, results, (spec, output_spec) = first.inputs, first.outputs, first.nested
    size = sum(x.nbytes for x in (*inputs, *results))
    much = large(size, given.task.device.value)
    reference = TwoPrecisions(given, model, spec, copies=first.writes or not much)
    init = _init_form(given)
    unit = coarsest(results, given.task.precision)
    reference.reach = reach(first.terms.signed, unit)
    reference.look(inputs, results)
    followed = trace_reference(lambda: reference.forward(inputs))
    reference.casts = followed.casts
    reference.look_for_marks(inputs)
    call_s = _seconds(reference, inputs)
    runs = ReferenceRuns(
        reference.forward,
        lambda inputs: reference.exactly(inputs).outputs,
        reference.discrete,
        reference.fits,
        reference.meant if reference.marked else None,
    )
    several = _several(reference, inputs)
    sizes = tables(lambda: reference.forward(inputs), inputs)
    suited = repertoire(inputs, ranges_of(several, sizes), followed, runs, call_s, ends_of(several))
    fixed = fixed_of(several, sizes)
    takes = acceptance(reference, model, inputs, call_s) if any(fixed) else None
    suited = with_fixed(suited, fixed, inputs, takes, call_s)
    roles = roles_of(model, lambda: reference.forward(inputs))
    about = {
        "inputs": spec,
        "output": output_spec,
        "init": init,
        "names": _parameters(model),
        "training": training_note(given.task, model),
        "traced": [number for number, traced in enumerate(followed.traced) if traced],
        "terms": astuple(first.terms),
        "peak": first.peak,
        "fp64": reference.fp64,
        "call_s": call_s,
        "large": much,
        "kinds": suited.kinds,
        "unvaried": _unvaried(suited, several),
        "unvaried_buffers": roles.unvaried,
        "grown": _grown(roles, model.state_dict()),
        "turns": {kind: astuple(n) for kind, n in suited.sweep_counts.items()},
    } | _layouts(model, inputs, results, followed)
    return Described(reference, first.terms, unit, much, suited, roles, takes, about)


def _first_run(reference: Reference, model: nn.Module) -> _FirstRun:
    import torch

    device = reference.task.device
    arguments = reference.inputs(0)
    inputs, spec = flatten(arguments, "inputs")
    peak = _peak(device)
    before = [x.clone() for x in inputs]
    outputs: list[Any] = []
    summed = terms(lambda: outputs.append(model(*arguments)))
    results, output_spec = flatten(outputs.pop(), "output")
    # NaN is unlike itself and counts as written, which costs copies only.
    writes = not all(map(torch.equal, before, inputs))
    peak = max(peak, _peak(device) - sum(x.nbytes for x in before))
    return _FirstRun(inputs, results, (spec, output_spec), summed, peak, writes)


def _peak(device: Device) -> int:
    """Bytes of the GPU's memory that were needed so far."""
    import torch

    return torch.cuda.max_memory_allocated() if device is Device.CUDA else 0


def _parameters(model: nn.Module) -> list[str]:
    """Names of the arguments of forward that a call may give by position."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a builtin: its arguments have no names
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_position]


def _init_form(reference: Reference) -> Any:
    """How the constructor's arguments are nested. Raises TaskError where one is a tensor."""
    positional, named = reference.init_args
    tensors, spec = flatten([list(positional), named])
    if tensors:
        raise TaskError(f"{reference.task.path}: get_init_inputs() holds a tensor")
    return spec


def _layouts(
    model: nn.Module, inputs: list[Tensor], results: list[Tensor], followed: ReferenceTrace
) -> dict[str, Any]:
    """What memory the referee is to lend for everything, and the names of the weights."""
    state = model.state_dict()
    places = find_places(followed, followed, ())
    chosen = [tensor for each in places for tensor in each.tensors]
    chooses = any(selection.indexed for selection in followed.selections)
    tied = results if chooses else []
    return {
        "state": list(state),
        "state_layout": layout_of(list(state.values()), dense=True).to_json(),
        "inputs_layout": layout_of(inputs).to_json(),
        "output_layout": layout_of(results, dense=True).to_json(),
        "precise_layout": layout_of(results, dense=True, wide=True).to_json(),
        "places_layout": layout_of(chosen, dense=True).to_json(),
        "tied_layout": layout_of(tied, dense=True, wide=True).to_json(),
        "reordered_layout": layout_of(tied, dense=True).to_json(),
    }


def _seconds(reference: TwoPrecisions, inputs: list[Tensor]) -> float:
    """About how long a call takes."""
    device = reference.task.device.value
    settle(device)
    begun = time.perf_counter()
    reference.forward(inputs)
    settle(device)
    return time.perf_counter() - begun


def _grown(roles: Roles, state: dict[str, Tensor]) -> list[Weights]:
    """Kinds of grown weights in which something is another number than in the others."""
    past = bool(roles.clamped) or roles.has_few_numbers(state)
    return [Weights.GROWN] * roles.grows + [Weights.PAST] * past


def _unvaried(suited: Repertoire, several: Sequence[Sequence[Tensor]]) -> list[int]:
    """Numbers of the inputs that are alike in every draw of every kind."""
    import torch

    kinds = set(suited.kinds)
    if len(several) == 1:
        return []  # large, and floating: other kinds of numbers take their place
    masks = {Inputs.MASKS, Inputs.EMPTY, Inputs.SINGLE} & kinds
    integers = {Inputs.EXTREMES, Inputs.ALIKE, Inputs.EVERY} & kinds
    unvaried = []
    for number, (first, *others) in enumerate(zip(*several, strict=True)):
        if not first.numel() or any(not torch.equal(first, other) for other in others):
            continue
        known = suited.fixed[number]
        if first.is_floating_point():
            moves = bool(kinds & {Inputs.NORMAL, Inputs.ONE_SIGNED, Inputs.ENDS, Inputs.TAILS})
        elif first.dtype is torch.bool:
            moves = bool(masks)
        else:
            moves = bool(integers and suited.ranges[number])
        if not moves and not (known and known.changes):
            unvaried.append(number)
    return unvaried


def _several(reference: TwoPrecisions, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Own draws, in which ranges are looked for; two at most where nothing tells of a range."""
    domains = any(ends_of([inputs]))
    numbers = max(1, sum(tensor.numel() for tensor in inputs))
    if all(is_inexact(tensor) for tensor in inputs) and not domains:
        few = numbers <= LOOKED_AT
        return [list(inputs), reference.own(1)] if few else [list(inputs)]
    count = max(RANGE_DRAWS, min(MOST_DRAWS, LOOKED_AT // numbers))
    return [reference.own(seed) for seed in range(count)]
