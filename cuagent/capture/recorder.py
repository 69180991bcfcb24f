"""Record the calls of modules in a running script, with their inputs, results and times.

The recorder's own time is subtracted from the measured times. Calls under CUDA graph capture are
counted but not recorded, and replays of a graph are not noticed. A step of the script is a call of
a module that no other module's call contains.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cuagent.capture.calls import (
    Call,
    autocast_of,
    describe_call,
    plain_output,
    refuse_context,
    tensors_of,
)
from cuagent.capture.clock import Timed, start, stop
from cuagent.capture.encode import Encoder, Unsupported
from cuagent.capture.intercept import intercept
from cuagent.capture.names import Names, is_wrapper
from cuagent.capture.outcome import Outcome, describe_outcome, marks
from cuagent.capture.samples import Input, Quota, TooLarge, copy, new_input
from cuagent.capture.sources import Sources, is_library
from cuagent.capture.structure import Structure, describe_module

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_EXAMPLES = 4
"""Largest number of call forms for which one example call is copied with its results."""
MOST_SHAPES = 64
"""Largest number of different `Shape`s that are recorded; calls of further shapes are only
counted."""


class Stopped(BaseException):
    """Exception that ends the script after the wanted number of calls.

    It is a BaseException, so that the script's `except Exception` does not catch it.
    """


@dataclass
class Shape:
    """Group of all calls with equal shapes, dtypes, constants, training mode and autocast."""

    call: Call
    inputs: list[Input]
    training: bool
    autocast: str | None
    count: int = 0
    with_gradients: int = 0
    """Number of calls in which gradients were enabled and some input or parameter requires them."""
    recorded: int = 0
    output_is_plain: bool = True
    outcome: Outcome | None = None
    """The results and changes of the calls; None if a package could not repeat them."""
    unrepeatable: str = ""
    """The part of a call that a package could not repeat, if it is known."""
    example: Example | None = None

    @property
    def arguments(self) -> tuple[object, ...]:
        """Key of the arguments: everything except the tensors' shapes and dtypes and the training
        mode."""
        named = tuple(self.call.named.items())
        return tuple(self.call.positional), named, self.autocast

    @property
    def form(self) -> tuple[object, ...]:
        """Key of the call form: the arguments, and the structure of the result."""
        return *self.arguments, self.output_is_plain, repr(self.outcome)


@dataclass
class Started:
    """A call of the captured module that runs now."""

    shape: Shape
    call: Call
    """The arguments with their live tensors."""
    before: list[tuple[str, Tensor, object]]
    """The `outcome.marks` from before the call."""
    wants_gradients: bool


@dataclass
class Snapshot:
    """State of the module at its first recorded call: structure, weights, torch flags, sources."""

    structure: Structure
    state: dict[str, Tensor]
    flags: dict[str, Any]
    sources: Sources
    reference: type
    versions: tuple[int, ...]
    """Version counters of the weights at the snapshot. An in-place change of a weight increases its
    counter."""


@dataclass
class Example:
    """Copies of the inputs and results of one real call that used the weights of the snapshot."""

    arguments: list[Tensor]
    outputs: list[Tensor] = field(default_factory=list)


class Recorder:
    """State of one capture; it intercepts module calls while the script runs.

    `target`: name of the module to capture; None: time all modules, for a list. `calls`: number of
    calls of each shape to record. `quota`: limit in bytes of all copies. `stop`: True to end the
    script after `calls` calls.
    """

    def __init__(self, target: str | None, calls: int, quota: int, stop: bool) -> None:
        self.target, self.calls, self.stop = target, calls, stop
        self.quota = Quota(quota)
        self.names = Names()
        self.timed: dict[str, Timed] = {}
        self.shapes: dict[str, Shape] = {}
        self.others = 0
        """Number of calls that were not recorded, because `MOST_SHAPES` others were."""
        self.under_capture = 0
        self.calls_by_class: Counter[type] = Counter()
        """Number of calls of the modules of each class, if one module is captured."""
        self.snapshot: Snapshot | None = None
        self.module: str = ""
        """Full name of the captured module."""
        self.failed = False
        """True if calls raised an exception before any returned."""
        self.problem = ""
        self.steps: list[tuple[float, float]] = []
        """Begin and end of each outermost module call, in seconds of `perf_counter`."""
        self.spent, self.first_spent = 0.0, 0.0
        """Seconds of the recorder's own work: after the first step, and during the first step."""
        self._depth = 0

    # -- the patch

    def install(self) -> None:
        """Patch `nn.Module` for the rest of the process."""
        intercept(self.names, self._call)

    def _call(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        with self._own_time():
            root, path = self.names.of(module)
            is_target = self.target is not None and self.names.is_target(
                self.target, module, outermost=self._depth == 0
            )
            is_listed = is_target or (self.target is None and not is_wrapper(module))
            entry = self._entry(module, root, path, args) if is_listed else None
            started = self._before(module, args, kwargs) if is_target else None
            if is_target:
                self.module = f"{root}.{path}" if path else root
            if self.target is not None:
                self.calls_by_class[type(module)] += 1
        self._depth += 1
        begin = time.perf_counter()
        try:
            clock = start(entry, module)
            output = run(*args, **kwargs)
            stop(entry, clock, begin, is_first=not self.steps)
        except BaseException:
            if started is not None and entry is not None:
                self._forget(started)
                entry.count -= 1
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.steps.append((begin, time.perf_counter()))
        if started is not None:
            with self._own_time():
                self._after(started, (*args, *kwargs.values()), output)
        return output

    @contextmanager
    def _own_time(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        elapsed = time.perf_counter() - begin
        self.spent += elapsed if self.steps else 0.0
        self.first_spent += 0.0 if self.steps or not self._depth else elapsed

    def _entry(self, module: nn.Module, root: str, path: str, args: Any) -> Timed:
        name = f"{root}.{path}" if path else root
        entry = self.timed.setdefault(name, Timed(type(module).__name__))
        if self.target is None:
            form = ", ".join(_form(x) for x in args if hasattr(x, "shape"))
            entry.shapes[form] = entry.shapes.get(form, 0) + 1
        entry.count += 1
        return entry

    # -- the captured module

    def _before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Started | None:
        import torch

        if self.problem:
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.under_capture += 1
            return None
        try:
            return self._record(module, args, kwargs)
        except (Unsupported, TooLarge) as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001  the script must not fail by a fault of the recorder
            self.problem = f"{type(error).__name__}: {error}"
        return None

    def _record(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Started | None:
        import torch

        enabled = torch.is_grad_enabled()
        refuse_context(module)
        with torch.no_grad():
            call = describe_call(module, args, kwargs, is_library)
            device = _device(call.tensors, module)
            mode = (module.training, autocast_of(device))
            forms = [_form(leaf) for leaf in call.tensors]
            key = repr((call.positional, call.named, forms, mode))
            shape = self.shapes.get(key)
            if shape is None:
                if len(self.shapes) >= MOST_SHAPES:
                    self.others += 1
                    return None
                pairs = list(zip(call.names, call.tensors, strict=True))
                inputs = [new_input(name, leaf, self.quota) for name, leaf in pairs]
                kept = replace(call, tensors=[])  # live tensors must not be held
                shape = self.shapes[key] = Shape(kept, inputs, *mode)
            elif shape.recorded < self.calls:
                for known, leaf in zip(shape.inputs, call.tensors, strict=True):
                    known.add(leaf, self.quota)
            wants_gradients = enabled and _wants_gradients(module, call.tensors)
            shape.count += 1
            shape.with_gradients += wants_gradients
            shape.recorded += shape.recorded < self.calls
            if self.snapshot is None:
                self.snapshot = self._snapshot(module)
            self._add_example(shape, module, call)
            return Started(shape, call, marks(call), wants_gradients)

    def _forget(self, started: Started) -> None:
        """Leave out a call that raised an exception, as of a script that looks for its largest
        batch."""
        shape = started.shape
        shape.count -= 1
        shape.with_gradients -= started.wants_gradients
        if shape.example is not None and not shape.example.outputs:
            shape.example = None
        if not shape.count:
            self.shapes = {key: kept for key, kept in self.shapes.items() if kept is not shape}
        if not self.shapes:
            self.snapshot = None
            self.failed = True

    def _add_example(self, shape: Shape, module: nn.Module, call: Call) -> None:
        """Copy this call as the example of its arguments' form, if that has none yet and the
        weights have not changed since the snapshot."""
        snapshot = self.snapshot
        if snapshot is None or _versions(module) != snapshot.versions:
            return
        known = (s for s in self.shapes.values() if s.arguments == shape.arguments)
        if any(s.example is not None for s in known):
            return
        if sum(s.example is not None for s in self.shapes.values()) >= MOST_EXAMPLES:
            return
        self.quota.take(sum(x.nbytes for x in call.tensors), "one call")
        for text in (*call.positional, *call.named.values()):
            snapshot.sources.need_tokens(text)
        shape.example = Example([copy(x) for x in call.tensors])

    def _snapshot(self, module: nn.Module) -> Snapshot:
        from cuagent.task.flags import read_flags

        encode = Encoder(is_library)
        try:
            structure = describe_module(module, encode)
        except Unsupported as error:
            raise Unsupported(f"the module cannot be written: {error}") from None
        state = structure.tensors
        self.quota.take(sum(x.nbytes for x in state.values()), "the module's weights")
        return Snapshot(
            structure=structure,
            state={name: copy(x) for name, x in state.items()},
            flags=read_flags(),
            sources=_sources(structure, type(module)),
            reference=type(module),
            versions=_versions(module),
        )

    def _after(self, started: Started, arguments: Sequence[Any], output: Any) -> None:
        try:
            self._record_result(started, arguments, output)
        except Exception as error:  # noqa: BLE001  the script must not fail by a fault of the recorder
            self.problem = self.problem or f"its result: {type(error).__name__}: {error}"
        if self.stop and sum(s.count for s in self.shapes.values()) >= self.calls:
            raise Stopped

    def _record_result(self, started: Started, arguments: Sequence[Any], output: Any) -> None:
        import torch

        shape, call = started.shape, started.call
        with torch.no_grad():
            plain, is_plain = plain_output(output)
            leaves, outcome = tensors_of(plain), None
            try:
                outcome, found = describe_outcome(
                    call, started.before, arguments, output, is_library
                )
                if outcome.values is not None:
                    leaves, is_plain = found, False
            except (Unsupported, ValueError, SyntaxError) as error:
                shape.unrepeatable = str(error) if isinstance(error, Unsupported) else ""
            if shape.count > 1 and outcome != shape.outcome:
                outcome = None
            shape.outcome, shape.output_is_plain = outcome, is_plain
            example = shape.example
            if example is not None and not example.outputs and not self.problem:
                try:
                    self.quota.take(sum(x.nbytes for x in leaves), "the result of one call")
                    example.outputs = [copy(x) for x in leaves]
                except TooLarge as error:
                    self.problem = str(error)
                if not leaves:
                    self.problem = f"it returns no tensor but a {type(output).__name__}"

    # -- results

    def window(self) -> float:
        """Return the wall time in seconds of the script's steps after the first one, without the
        recorder's own time.

        With only one step, return the time of that step.
        """
        if not self.steps:
            return 0.0
        if len(self.steps) == 1:
            return max(self.steps[0][1] - self.steps[0][0] - self.first_spent, 1e-9)
        return max(self.steps[-1][1] - self.steps[0][1] - self.spent, 1e-9)

    def seconds(self, entry: Timed) -> float:
        """Return the seconds that a module took within `window`."""
        events, entry.events = entry.events, []
        for begin, end, is_first in events:
            elapsed = begin.elapsed_time(end) / 1e3
            entry.first_seconds += elapsed if is_first else 0.0
            entry.seconds += 0.0 if is_first else elapsed
        return entry.first_seconds if len(self.steps) == 1 else entry.seconds


def _versions(module: nn.Module) -> tuple[int, ...]:
    """Return the version counters of all weights; -1 for inference tensors, which have none."""
    found = []
    for tensor in (*module.parameters(), *module.buffers()):
        try:
            found.append(tensor._version)
        except RuntimeError:
            found.append(-1)
    return tuple(found)


def _sources(structure: Structure, kind: type) -> Sources:
    from cuagent.capture.encode import reference

    sources = Sources()
    sources.need_tokens(reference(kind))
    for text in structure.rows:
        sources.need_tokens(text)
    return sources


def _form(tensor: Tensor) -> str:
    shape = ",".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"


def _wants_gradients(module: nn.Module, tensors: Sequence[Tensor]) -> bool:
    return any(t.requires_grad for t in tensors) or any(
        parameter.requires_grad for parameter in module.parameters()
    )


def _device(leaves: list[Tensor], module: nn.Module) -> str:
    tensors = [*leaves, *module.parameters()]
    return str(tensors[0].device.type) if tensors else "cpu"
