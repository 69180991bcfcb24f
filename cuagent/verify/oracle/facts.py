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
"""Name of a file in the oracle's folder: bytes that limit the device's memory, or null."""
LOCK = "lock.json"
"""Name of a file in the oracle's folder: path of the device's lock, or null."""


@dataclass(frozen=True)
class Layouts:
    """Layouts (shapes, dtypes, offsets) of the arenas that the referee shares for one call."""

    inputs: Layout
    output: Layout
    """Layout of the outputs in the reference's own precision."""
    precise: Layout
    """Layout of the fp64 outputs."""
    spread: Layout
    """Layout of the outputs' spread: in fp64, or in bf16 for a large task."""
    moved: Layout
    """Layout of the sensitivity of the outputs: in fp64, or in fp32 for a large task."""
    places: Layout
    """Layout of the elements from which the reference chose the indices in its outputs
    (`Places`).
    """
    tied: Layout
    """Same as `moved` if the reference selects elements (max, sort), else empty."""
    reordered: Layout
    """Same as `output` if the reference selects elements, else empty."""
    state: Layout
    """Layout of the state dict."""

    @property
    def bytes_per_call(self) -> int:
        """Bytes of two input sets and two sets of outputs."""
        return 2 * (self.inputs.size + self.output.size)


@dataclass(frozen=True)
class TaskFacts:
    """Properties of a task's reference that the oracle determines once; all verdicts use them."""

    inputs: Spec
    """Spec of the positional arguments of forward."""
    output: Spec
    """Spec of the value that forward returns."""
    init: Spec
    """Spec of [positional, named] arguments of the constructor."""
    names: tuple[str, ...]
    """Names of forward's parameters that can be passed by position."""
    training: str
    """Note on modules that compute something else in training mode (dropout, BatchNorm); "" without
    any.
    """
    traced: tuple[int, ...]
    """Indices of the outputs that contain indices chosen by a max, sort or topk of known
    elements.
    """
    terms: Terms
    """Numbers of terms of the longest sums in the reference."""
    peak: int
    """Peak bytes of one call: weights, inputs, intermediate results, outputs."""
    fp64: bool
    """True if the reference runs in fp64."""
    call_s: float
    """Approximate seconds of one call of the reference."""
    large: bool
    """True for a large task: inputs and outputs take a large share of the device's memory."""
    kinds: tuple[Inputs, ...]
    """Kinds of inputs on which the reference gives usable outputs."""
    unvaried: tuple[int, ...]
    """Indices of the inputs that are equal in every draw."""
    unvaried_buffers: tuple[str, ...]
    """Names of the buffers that no kind of weights changes."""
    grown: tuple[Weights, ...]
    """Kinds of grown weights (`Weights.GROWN`, `Weights.PAST`) that change the model's outputs."""
    sweep_counts: dict[Inputs, SweepCount]
    """Number of draws in the sweep of each kind."""
    state: tuple[str, ...]
    """Names of the entries of the state dict, in the order of its layout."""
    layouts: Layouts
    settings: TorchSettings
    """torch's settings in the reference's process, after the task's file was imported."""
    slices: int = 0
    """Number of slices in which the fp64 reference runs; 0 if it runs on the whole input at
    once.
    """
    columns: int = 0
    """Most bytes that a convolution of the fp64 reference takes besides its output
    (`oracle.convolutions`)."""

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
