"""Find hidden dependencies of a reference: earlier calls, the clock, the process, its construction.

Each model is constructed from a fresh import of the user's file, so that globals and caches start
empty. The first model is called repeatedly, and under a shifted clock. A second one is imported
under that clock and called on other inputs first. If its answer differs from the first, further
models vary one condition at a time. A cache that gives the same answer as a fresh model (a mask
kept by shape) is harmless. A counter that does not matter yet is advanced to values of later calls.
Not covered: state that only a rare call changes, and state that `module_state` does not reach.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from cuagent.task import Reference, TaskError, flatten, open_reference, unflatten
from cuagent.task.reference import root_folder
from cuagent.verify.fitness.environment import Environment, is_user_file, shifted_environment
from cuagent.verify.fitness.examine import NOISE, SEEDS, distance
from cuagent.verify.fitness.module_state import ModuleState, changed, module_state
from cuagent.verify.inputs.derive import derive
from cuagent.verify.inputs.kinds import Inputs

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

Sample = Callable[[list["Tensor"]], list["Tensor"]]
SHIFT_S = 34_560_019
"""Shift of the clock in seconds: 400 days, plus some hours, minutes and seconds."""
SHIFTS_S = (1, 61, 3_607, 86_413)
"""Further clock shifts in seconds if the reference reads a clock.

They change the parity of the second, the minute, the hour and the day.
"""
WATCH_S = 0.08
"""Seconds of repeated equal calls after which no further call is made."""
MOST_CALLS, FEWEST_CALLS = 200, 1
"""Largest and least number of repeated equal calls."""
COUNTER_VALUES = (100, 1_000, 10_000, 10_080)
"""Values to which counters in the model are set, to see if the output changes.

They are common thresholds and multiples. They stay small, because a module may loop that often.
"""
LIST_LENGTHS = (100, 1_000)
"""Lengths to which a growing list of the module is extended, to see if the answer changes."""
ROUNDING = 4.0
"""Difference up to which the outputs of equal calls count as equal, in eps of the dtype.

It is relative to the largest value.
"""
NOISES = 10.0
"""Difference up to which outputs of equal calls count as equal, in units of `examine`'s noise."""
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Errors that a module may raise under a shifted clock or an advanced counter."""


class Findings(TypedDict):
    """Hidden dependencies of a reference."""

    depends_on: str
    """Hidden dependency that changes the output; empty if there is none.

    `construction`, `clock`, `calls` (earlier calls), or `later` (a counter that later calls reach).
    """
    read: list[str]
    """Names of the functions for clocks and process numbers that the user's files called."""
    changes: list[str]
    """Names of the attributes and globals that each call changes."""
    later: str
    """Name of the counter that changes the output of later calls."""
    draws: list[str]
    """Modules (`random`, `numpy.random`) from which a call draws random numbers."""
    opens: list[str]
    """Files that a call opens."""
    calls: int
    """Number of calls whose outputs were compared."""


NO_FINDINGS: Findings = {
    "depends_on": "",
    "read": [],
    "changes": [],
    "later": "",
    "draws": [],
    "opens": [],
    "calls": 0,
}


def hidden_dependencies(
    reference: Reference, facts: Mapping[str, Any], sample: Sample = lambda inputs: inputs
) -> Findings:
    """Return the hidden dependencies of a reference.

    `facts` are the findings of `examine`; if they already suffice to refuse the task, the reference
    is not called. `sample` reduces the inputs to the part on which the reference is called.
    """
    if facts["random"] or facts["changed_state"] or facts["noise"] > NOISE:
        return NO_FINDINGS
    with (
        _restored_imports(reference),
        shifted_environment(root_folder(reference.task)) as environment,
    ):
        try:
            return _Experiment(reference, environment, facts["noise"], sample).run()
        except (*FAILURES, TaskError):  # it fails only under these conditions, not in usual use
            return NO_FINDINGS


class _Model:
    """A model constructed from a fresh import of the user's module."""

    def __init__(self, reference: Reference, environment: Environment) -> None:
        _forget_imports(reference)
        try:
            self.reference = replace(
                open_reference(reference.task),
                constructing=reference.constructing,
                values=reference.values,
            )
        except TaskError:  # a module that registers itself can be imported only once
            self.reference = reference
        self.folder = environment.folder
        self.model = self.reference.model(0)
        self.spec: dict[str, Any] = {}

    def inputs(self, seed: int) -> list[Tensor]:
        leaves, self.spec = flatten(self.reference.inputs(seed), "inputs")
        return leaves

    def __call__(self, inputs: Sequence[Tensor], spec: dict[str, Any]) -> list[Tensor]:
        output = self.model(*unflatten([tensor.clone() for tensor in inputs], spec))
        return [tensor.clone() for tensor in flatten(output, "output")[0]]

    def module_state(self) -> dict[str, ModuleState]:
        return module_state(self.model, _modules(self.reference), self.folder)


class _Experiment:
    """Calls of freshly imported models: repeated, under a shifted clock, after other calls."""

    def __init__(
        self, reference: Reference, environment: Environment, noise: float, sample: Sample
    ) -> None:
        self.reference, self.environment, self.noise = reference, environment, noise
        self.sample = sample
        self.calls = 0

    def run(self) -> Findings:
        one = _Model(self.reference, self.environment)
        self.inputs = self.sample(one.inputs(SEEDS[0]))
        self.spec = one.spec
        self.others = self.sample(one.inputs(SEEDS[1]))
        if not any(distance(a, b) for a, b in zip(self.inputs, self.others, strict=True)):
            self.others = derive(Inputs.NORMAL, self.inputs, SEEDS[1])
        self.first = one(self.inputs, self.spec)
        one(self.inputs, self.spec)  # completes lazy initialization
        draws, before, after = self._observed_call(one)
        changes = changed(before, after)
        depends_on = self._dependence_on_calls(one) or self._dependence_on_clock(one)
        later = "" if depends_on else self._dependence_on_counters(one, changes, before, after)
        del one
        return {
            "depends_on": depends_on or ("later" if later else self._dependence_on_history()),
            "read": sorted(self.environment.read),
            "changes": changes,
            "later": later,
            "draws": draws,
            "opens": sorted(set(self.environment.opened)),
            "calls": self.calls,
        }

    def _agrees(self, model: _Model) -> bool:
        """Call `model`; return True if its output equals that of the first call, up to noise."""
        self.calls += 1
        return self._same(model(self.inputs, self.spec))

    def _same(self, output: Sequence[Tensor]) -> bool:
        import torch

        return all(
            torch.equal(a, b) or distance(a, b) <= max(NOISES * self.noise, _rounding(a))
            for a, b in zip(self.first, output, strict=True)
        )

    def _observed_call(
        self, model: _Model
    ) -> tuple[list[str], dict[str, ModuleState], dict[str, ModuleState]]:
        """Make one call; return the random generators that it used and the state before and after
        it.
        """
        import numpy

        def states() -> dict[str, str]:
            drawn = {"random": random.getstate(), "numpy.random": numpy.random.get_state()}
            return {name: repr(state) for name, state in drawn.items()}

        drawn = states()
        before = model.module_state()
        self.environment.recording = True
        model(self.inputs, self.spec)
        self.environment.recording = False
        after = model.module_state()
        return [n for n, state in states().items() if state != drawn[n]], before, after

    def _dependence_on_calls(self, model: _Model) -> str:
        """Repeat the first call; return "calls" if its output changes, else ""."""
        start = time.monotonic()
        for number in range(MOST_CALLS):
            if number >= FEWEST_CALLS and time.monotonic() - start > WATCH_S:
                break
            if self._fails_or_differs(model):
                return "calls"
        return ""

    def _dependence_on_counters(
        self,
        model: _Model,
        changes: Sequence[str],
        before: Mapping[str, ModuleState],
        after: Mapping[str, ModuleState],
    ) -> str:
        """Return the name of the first counter or growing list that changes the output; "" if none
        does.

        `changes` are the names of the state that a call changed, `before` and `after` its values.
        """
        for name in changes:
            if name in before and name in after:
                now = model.module_state()[name]
                if isinstance(now.value, list) and now.value:
                    changes_output = any(
                        self._changes_when_longer(model, now.value, size) for size in LIST_LENGTHS
                    )
                else:
                    changes_output = self._changes_when_advanced(
                        model, now, before[name].value, after[name].value
                    )
                if changes_output:
                    return name
        return ""

    def _changes_when_advanced(
        self, model: _Model, now: ModuleState, before: Any, after: Any
    ) -> bool:
        """Return True if the output changes when a counter is set to one of COUNTER_VALUES.

        `before` and `after` are the counter's values around one call.
        """
        if now.setter is None or not isinstance(now.value, int | float):
            return False
        step = after - before
        if not 0 < abs(step) <= COUNTER_VALUES[0]:
            return False
        for later in COUNTER_VALUES if step > 0 else (1, 0, *(-count for count in COUNTER_VALUES)):
            now.setter(type(now.value)(later - step))
            differs = self._differs(model)
            now.setter(now.value)
            if differs:
                return True
        return False

    def _changes_when_longer(self, model: _Model, items: list[Any], size: int) -> bool:
        now = list(items)
        items.extend([items[-1]] * max(0, size - len(items)))
        differs = self._differs(model)
        items[:] = now
        return differs

    def _differs(self, model: _Model) -> bool:
        try:
            return not self._agrees(model)
        except FAILURES:
            return False

    def _fails_or_differs(self, model: _Model) -> bool:
        """Repeat the first call; return True if it raises an error or its output differs."""
        try:
            return not self._agrees(model)
        except FAILURES:
            return True

    def _dependence_on_clock(self, model: _Model) -> str:
        """Return "clock" if the output of two calls in a row differs under a shifted clock, else
        "".
        """
        for offset_s in (SHIFT_S, *(SHIFTS_S if self.environment.read else ())):
            with self._clock_shifted(offset_s):
                if not (self._agrees(model) or self._agrees(model)):
                    return "clock"
        return ""

    @contextmanager
    def _clock_shifted(self, seconds: int) -> Iterator[None]:
        self.environment.offset_s = seconds
        try:
            yield
        finally:
            self.environment.offset_s = 0

    def _dependence_on_history(self) -> str:
        """Compare a fresh model, under a shifted clock and after other calls, with the first model.

        Returns the condition that changes the output: "construction", "calls" or "clock"; "" if
        none does.
        """
        if self._fresh_model_agrees(SHIFT_S, called=True):
            return ""
        if not self._fresh_model_agrees(0, called=False):
            return "construction"
        if not self._fresh_model_agrees(0, called=True):
            return "calls"
        return "" if self._fresh_model_agrees(SHIFT_S, called=False) else "clock"

    def _fresh_model_agrees(self, offset_s: int, *, called: bool) -> bool:
        with self._clock_shifted(offset_s):
            model = _Model(self.reference, self.environment)
            if called:
                model(self.others, self.spec)
            return self._agrees(model)


def _rounding(tensor: Tensor) -> float:
    import torch

    floating = tensor.is_floating_point() or tensor.is_complex()
    return ROUNDING * torch.finfo(tensor.dtype).eps if floating else 0.0


def _modules(reference: Reference) -> list[ModuleType]:
    """Return the user's module and the modules that it imports from its folder."""
    return [reference.module, *_imported_user_modules(reference).values()]


def _imported_user_modules(reference: Reference) -> dict[str, ModuleType]:
    folder = root_folder(reference.task)
    return {
        name: module
        for name, module in list(sys.modules.items())
        if is_user_file(getattr(module, "__file__", None) or "", folder)
        and name.partition(".")[0] != "cuagent"
        and module is not reference.module
    }


def _forget_imports(reference: Reference) -> None:
    for name in _imported_user_modules(reference):
        del sys.modules[name]


@contextmanager
def _restored_imports(reference: Reference) -> Iterator[None]:
    """Context after which the modules imported from the user's folder are the same as before it."""
    modules = {name: m for name, m in sys.modules.items() if m is reference.module}
    modules |= _imported_user_modules(reference)
    try:
        yield
    finally:
        _forget_imports(reference)
        sys.modules.update(modules)
