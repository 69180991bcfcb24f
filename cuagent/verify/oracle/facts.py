"""Facts about a task that the oracle reports once, before any verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from cuagent.task import Spec, TorchSettings
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.sweeps import SweepCount
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.trace.reductions import Terms
from cuagent.worker import Layout

BUDGET = "budget.json"
"""File in the oracle's folder: bytes that limit the device's memory, or null."""
LOCK = "lock.json"
"""File in the oracle's folder: path of the device's lock, or null."""
PAUSING = "pausing"
"""Key of a message that precedes an answer: the device is idle, and the oracle goes on when it gets
a message."""


@dataclass(frozen=True)
class Layouts:
    """Layouts of the arenas that the referee lends for one call."""

    inputs: Layout
    output: Layout
    """The outputs in their own precision."""
    precise: Layout
    """The outputs in fp64."""
    spread: Layout
    """The spread of the outputs: in fp64, or in bf16 for a large task."""
    moved: Layout
    """The largest change of each output element: in fp64, or in fp32 for a large task."""
    places: Layout
    """The elements from which the indices in outputs were chosen (`rules.ties.Places`)."""
    tied: Layout
    """Layout of `moved` if operators choose among elements, else empty."""
    reordered: Layout
    """The outputs in their own precision if operators choose among elements, else empty."""
    state: Layout
    """The state dict."""

    @property
    def bytes_per_call(self) -> int:
        """Bytes of one input set and its outputs, each twice."""
        return 2 * (self.inputs.size + self.output.size)


@dataclass(frozen=True)
class TaskFacts:
    """Properties of a task's reference that do not change between verdicts."""

    inputs: Spec
    """Spec of the positional arguments of forward."""
    output: Spec
    """Spec of the value that forward returns."""
    init: Spec
    """Spec of [positional, named] arguments of the constructor."""
    names: tuple[str, ...]
    """Parameters of forward that a call can give by position."""
    training: str
    """Note on parts that act differently in training mode; "" if there are none."""
    traced: tuple[int, ...]
    """Numbers of the outputs whose indices can be traced to the elements that they were chosen
    from."""
    terms: Terms
    """Lengths of the longest sums in the reference."""
    peak: int
    """Bytes that the reference needs: weights, inputs, intermediate results, outputs."""
    fp64: bool
    """True if the reference runs in fp64."""
    call_s: float
    """Approximate seconds of one call."""
    large: bool
    """True if inputs and outputs take a large share of the device's memory."""
    kinds: tuple[Inputs, ...]
    """Kinds of inputs that the reference accepts."""
    unvaried: tuple[int, ...]
    """Numbers of the inputs that are equal in every draw."""
    unvaried_buffers: tuple[str, ...]
    """Names of the buffers that no kind of weights changes."""
    grown: tuple[Weights, ...]
    """Kinds of grown weights that change the model's behaviour."""
    sweep_counts: dict[Inputs, SweepCount]
    """Number of draws of each sweep."""
    state: tuple[str, ...]
    """Names in the state dict."""
    layouts: Layouts
    settings: TorchSettings
    """torch's settings of the process in which the reference ran, as the task's file left them."""
    slices: int = 0
    """Number of slices in which the reference runs in fp64; 0 if it runs whole."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON, for another process."""
        layouts = {f.name: getattr(self.layouts, f.name).to_json() for f in fields(Layouts)}
        counts = {kind.value: astuple(count) for kind, count in self.sweep_counts.items()}
        plain = {f.name: getattr(self, f.name) for f in fields(TaskFacts)}
        return plain | {
            "terms": astuple(self.terms),
            "sweep_counts": counts,
            "layouts": layouts,
            "settings": self.settings.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TaskFacts:
        """Return the facts that `to_json` wrote. Raises KeyError or TypeError for other data."""
        lists = ("names", "traced", "unvaried", "unvaried_buffers", "state")
        layouts = {name: Layout.from_json(form) for name, form in data["layouts"].items()}
        counts = data["sweep_counts"].items()
        typed: dict[str, Any] = {name: tuple(data[name]) for name in lists} | {
            "terms": Terms(*data["terms"]),
            "kinds": tuple(Inputs(kind) for kind in data["kinds"]),
            "grown": tuple(Weights(kind) for kind in data["grown"]),
            "sweep_counts": {Inputs(kind): SweepCount(*count) for kind, count in counts},
            "layouts": Layouts(**layouts),
            "settings": TorchSettings.from_json(data["settings"]),
        }
        return TaskFacts(**{**data, **typed})
