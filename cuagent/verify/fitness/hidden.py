"""What a reference's answer hangs on beside inputs and weights: its own past, the clock, a process.

Models are constructed from the user's file imported afresh, so that globals and caches begin anew.
One answers first of all, again and again, and under a clock set ahead; another was called on other
inputs before, under that clock from its import on. Whoever gives another answer than the first is
tried once more with one difference at a time. A cache that answers as a fresh model does (a mask
kept by shape) is nobody's concern; a counter that nothing hangs on yet is carried on to what later
calls would make of it. Not seen: what only a rare call changes, and what `kept.py` does not reach.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from cuagent.task import Reference, TaskError, flatten, open_reference, unflatten
from cuagent.task.reference import root_folder
from cuagent.verify.fitness.environment import Environment, of_the_user, set_ahead
from cuagent.verify.fitness.examine import NOISE, SEEDS, distance
from cuagent.verify.fitness.module_state import ModuleState, changed, module_state
from cuagent.verify.inputs.kinds import Inputs, derive

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

AHEAD = 34_560_019
"""Seconds: 400 days, and some of every unit."""
AHEADS = (1, 61, 3_607, 86_413)
"""Where a clock is read: parity, minute, hour and day."""
WATCH_S = 0.08
MOST_CALLS, FEWEST_CALLS = 200, 1
LATER = (100, 1_000, 10_000, 10_080)
"""What counters are carried on to: thresholds, and multiples of what is usual. No further, since a
module may loop so often."""
LATER_LENGTHS = (100, 1_000)
ROUNDING = 4.0
"""Units of the dtype, relative to the largest value, by which equal work may differ."""
NOISES = 10.0
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What a module may raise when a clock is ahead or a counter was carried on."""


class Findings(TypedDict):
    """What the answer of a reference hangs on, beside its inputs."""

    depends_on: str
    """`construction`, `clock`, `calls`, `later` or nothing."""
    read: list[str]
    """Clocks and process numbers that were asked."""
    changes: list[str]
    """Names of what each call changes."""
    later: str
    """The counter that changes the output of later calls."""
    draws: list[str]
    """Modules whose random numbers are drawn."""
    opens: list[str]
    """Files that are opened."""
    calls: int
    """How many were watched."""


NOTHING: Findings = {
    "depends_on": "",
    "read": [],
    "changes": [],
    "later": "",
    "draws": [],
    "opens": [],
    "calls": 0,
}


def hidden_dependencies(reference: Reference, known: Mapping[str, Any]) -> Findings:
    """`known` is what `examine` found; where that is enough to refuse, nothing more is asked."""
    if known["random"] or known["changed_state"] or known["noise"] > NOISE:
        return NOTHING
    with _imports_kept(reference), set_ahead(root_folder(reference.task)) as environment:
        try:
            return _Experiment(reference, environment, known["noise"]).run()
        except (*FAILURES, TaskError):  # it runs as it is used, and not under these conditions
            return NOTHING


class _Model:
    """One model of the user's, of a module that was just imported."""

    def __init__(self, reference: Reference, environment: Environment) -> None:
        _forget_imports(reference)
        try:
            self.reference = open_reference(reference.task)
        except TaskError:  # one that registers itself somewhere runs once only
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
    """Calls of models of the user's under conditions that no candidate would know of."""

    def __init__(self, reference: Reference, environment: Environment, noise: float) -> None:
        self.reference, self.environment, self.noise = reference, environment, noise
        self.calls = 0

    def run(self) -> Findings:
        one = _Model(self.reference, self.environment)
        self.inputs = one.inputs(SEEDS[0])
        self.spec = one.spec
        self.others = one.inputs(SEEDS[1])
        if not any(distance(a, b) for a, b in zip(self.inputs, self.others, strict=True)):
            self.others = derive(Inputs.NORMAL, self.inputs, SEEDS[1])
        self.first = one(self.inputs, self.spec)
        one(self.inputs, self.spec)  # what it sets up lazily is there now
        draws, before, after = self._watched(one)
        changes = changed(before, after)
        depends_on = self._on_calls(one) or self._on_the_clock(one)
        later = "" if depends_on else self._later(one, changes, before, after)
        del one
        return {
            "depends_on": depends_on or ("later" if later else self._on_the_past()),
            "read": sorted(self.environment.read),
            "changes": changes,
            "later": later,
            "draws": draws,
            "opens": sorted(set(self.environment.opened)),
            "calls": self.calls,
        }

    def _answers(self, model: _Model) -> bool:
        """Whether it gives the first answer, as far as equal work is equal."""
        self.calls += 1
        return self._same(model(self.inputs, self.spec))

    def _same(self, output: Sequence[Tensor]) -> bool:
        import torch

        return all(
            torch.equal(a, b) or distance(a, b) <= max(NOISES * self.noise, _rounding(a))
            for a, b in zip(self.first, output, strict=True)
        )

    def _watched(
        self, model: _Model
    ) -> tuple[list[str], dict[str, ModuleState], dict[str, ModuleState]]:
        """One call: whose random numbers it draws, and what is kept before and after."""
        import numpy

        def states() -> dict[str, str]:
            drawn = {"random": random.getstate(), "numpy.random": numpy.random.get_state()}
            return {name: repr(state) for name, state in drawn.items()}

        drawn = states()
        before = model.module_state()
        self.environment.listening = True
        model(self.inputs, self.spec)
        self.environment.listening = False
        after = model.module_state()
        return [n for n, state in states().items() if state != drawn[n]], before, after

    def _on_calls(self, model: _Model) -> str:
        """ "calls" if equal calls do not go on giving the same."""
        begun = time.monotonic()
        for number in range(MOST_CALLS):
            if number >= FEWEST_CALLS and time.monotonic() - begun > WATCH_S:
                break
            if self._fails_or_differs(model):
                return "calls"
        return ""

    def _later(
        self,
        model: _Model,
        changes: Sequence[str],
        before: Mapping[str, ModuleState],
        after: Mapping[str, ModuleState],
    ) -> str:
        """The first counter, or growing list, that changes the output when it is carried on."""
        for name in changes:
            if name in before and name in after:
                now = model.module_state()[name]
                if isinstance(now.value, list) and now.value:
                    hangs = any(self._longer(model, now.value, size) for size in LATER_LENGTHS)
                else:
                    hangs = self._carried_on(model, now, before[name].value, after[name].value)
                if hangs:
                    return name
        return ""

    def _carried_on(self, model: _Model, now: ModuleState, before: Any, after: Any) -> bool:
        """Whether the output changes when a counter, seen to step so, comes to be much larger."""
        if now.put is None or not isinstance(now.value, int | float):
            return False
        step = after - before
        if not 0 < abs(step) <= LATER[0]:
            return False
        for later in LATER if step > 0 else (1, 0, *(-count for count in LATER)):
            now.put(type(now.value)(later - step))
            differs = self._differs(model)
            now.put(now.value)
            if differs:
                return True
        return False

    def _longer(self, model: _Model, items: list[Any], size: int) -> bool:
        now = list(items)
        items.extend([items[-1]] * max(0, size - len(items)))
        differs = self._differs(model)
        items[:] = now
        return differs

    def _differs(self, model: _Model) -> bool:
        try:
            return not self._answers(model)
        except FAILURES:
            return False

    def _fails_or_differs(self, model: _Model) -> bool:
        """Under no other conditions than its first calls: there it has no excuse."""
        try:
            return not self._answers(model)
        except FAILURES:
            return True

    def _on_the_clock(self, model: _Model) -> str:
        """ "clock" if the same model answers otherwise when it is later, and does so twice."""
        for prefetcher in (AHEAD, *(AHEADS if self.environment.read else ())):
            with self._ahead(prefetcher):
                if not (self._answers(model) or self._answers(model)):
                    return "clock"
        return ""

    @contextmanager
    def _ahead(self, seconds: int) -> Iterator[None]:
        self.environment.prefetcher = seconds
        try:
            yield
        finally:
            self.environment.prefetcher = 0

    def _on_the_past(self) -> str:
        """Whether one made later, and called on other inputs before, answers otherwise; and why."""
        if self._made(AHEAD, called=True):
            return ""
        if not self._made(0, called=False):
            return "construction"
        if not self._made(0, called=True):
            return "calls"
        return "" if self._made(AHEAD, called=False) else "clock"

    def _made(self, prefetcher: int, *, called: bool) -> bool:
        with self._ahead(prefetcher):
            model = _Model(self.reference, self.environment)
            if called:
                model(self.others, self.spec)
            return self._answers(model)


def _rounding(tensor: Tensor) -> float:
    import torch

    floating = tensor.is_floating_point() or tensor.is_complex()
    return ROUNDING * torch.finfo(tensor.dtype).eps if floating else 0.0


def _modules(reference: Reference) -> list[ModuleType]:
    """The user's file as it was imported, and those beside it that it imports."""
    return [reference.module, *_beside(reference).values()]


def _beside(reference: Reference) -> dict[str, ModuleType]:
    folder = root_folder(reference.task)
    return {
        name: module
        for name, module in list(sys.modules.items())
        if of_the_user(getattr(module, "__file__", None) or "", folder)
        and name.partition(".")[0] != "cuagent"
        and module is not reference.module
    }


def _forget_imports(reference: Reference) -> None:
    for name in _beside(reference):
        del sys.modules[name]


@contextmanager
def _imports_kept(reference: Reference) -> Iterator[None]:
    """What is imported from the user's folder now is so again afterwards."""
    known = {name: m for name, m in sys.modules.items() if m is reference.module}
    known |= _beside(reference)
    try:
        yield
    finally:
        _forget_imports(reference)
        sys.modules.update(known)
