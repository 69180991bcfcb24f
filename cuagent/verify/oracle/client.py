"""The referee's handle of the oracle: a trusted process that draws inputs and computes the answers.

Oracle and candidate may map the same arenas of inputs and weights, but no other memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cuagent.task import Task, TaskError
from cuagent.verify.inputs.kinds import LENIENT, PLACED, Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.facts import TaskFacts
from cuagent.verify.oracle.process import OracleLost, OracleProcess
from cuagent.verify.oracle.tie_orders import ORDERS
from cuagent.verify.rules.types import Sensitivity
from cuagent.worker import Arena, ForkServer

if TYPE_CHECKING:
    from torch import Tensor

TIE_PAIRS = 6
"""Number of opposite perturbation pairs with which ties are searched."""
ANSWER_ARENAS = ("declared", "precise", "spread", "places")
"""Names of the arenas that every answer fills."""


class AnswerInfo(NamedTuple):
    """Properties of the oracle's answer to one draw, sent together with it."""

    finite: bool
    """True if the reference's outputs and intermediate results are finite on these inputs."""
    fills_hidden: bool
    """True if masked elements have no effect on the answer (`mask_fills`)."""
    perturbations: int
    """Number of perturbed runs from which the spread was measured; 0 if it was not."""
    certain: bool
    """True if roundoff changes no comparison, rounding or choice on these inputs
    (`Expected.certain`).
    """

    @classmethod
    def from_json(cls, reply: dict[str, Any]) -> AnswerInfo:
        """Return the properties from the JSON that the oracle sent."""
        return cls(reply["finite"], reply["fills_hidden"], reply["perturbations"], reply["certain"])

    def is_decisive(self, kind: Inputs, weights: Weights = Weights.OWN) -> bool:
        """Return True if a candidate may be rejected because of this answer to inputs of `kind`."""
        drawn_by_tasks = (
            kind in PLACED and weights is not Weights.SUNK
        )  # no task draws SUNK weights itself
        return self.fills_hidden and (self.finite or drawn_by_tasks or kind in LENIENT)


@dataclass(frozen=True)
class PerturbationBudget:
    """Limits of the perturbed runs that the oracle makes for one answer."""

    seconds: float | None
    """Approximate seconds for measuring the spread; None to measure neither spread nor ties."""
    opposites: int = TIE_PAIRS
    """Number of opposite perturbation pairs with which ties are searched."""
    count: int = 0
    """Number of perturbed runs for the spread; 0 for 2 to 8, depending on `seconds`.

    It is set if an earlier verdict is repeated.
    """
    check_decisions: bool = False
    """True to determine `AnswerInfo.certain`."""


@dataclass(frozen=True)
class SensitivityQuery:
    """Request to the oracle to measure the sensitivity of one draw's answer.

    It is sent at the first use, before an error rejects a candidate.
    """

    oracle: Oracle
    inputs: Arena
    slot: int
    answers: dict[str, Arena]
    seed: int
    pairs: int
    """Number of opposite perturbation pairs."""
    ready: Callable[[], None] = lambda: None
    """Callback before each request to the oracle."""
    target: int = 0
    """Slot of the answer in the arenas of `answers`."""

    @cached_property
    def moved(self) -> Sensitivity:
        """Sensitivity of the answer; the oracle measures it at first use."""
        self.ready()
        return self.oracle.sensitivity(
            self.inputs, self.slot, self.answers, self.target, self.seed, self.pairs
        )

    def reordered(self) -> Iterator[list[Tensor]]:
        """Yield the reference's outputs under other orders of equal elements.

        Each is valid until the next one is requested.
        """
        reordered = self.answers["reordered"]
        for order in range(len(ORDERS[: self.pairs]) if reordered.layout.leaves else 0):
            self.ready()
            if self.oracle.reorder(self.inputs, self.slot, self.answers, order):
                yield reordered.tensors()


class Oracle:
    """Handle of the oracle's process for the referee.

    Methods raise TaskError if the user's module fails or crashes the process, OracleLost if the
    process ends otherwise.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        task: Task,
        budget: int | None = None,
        lock: Path | None = None,
    ) -> None:
        """Start the oracle. `budget` limits the bytes of the device's memory.

        `lock` is the path of the device's lock.
        """
        self._process = OracleProcess(fork_server, task, budget, lock)
        self._arena_ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self.lean = False
        """True for a large task, whose answers are computed in two requests and released after
        use.
        """
        self.weights: tuple[Weights, int] | None = None
        """(kind, seed) of the weights that the oracle uses after all sent requests; None if
        unknown.
        """
        self._weight_requests: set[int] = set()

    @property
    def pid(self) -> int:
        """Process id of the oracle."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the oracle is running and accepts requests."""
        return self._process.alive

    @property
    def is_idle(self) -> bool:
        """True if every request was answered."""
        return self._process.is_idle

    def describe(self, give_way: Callable[[], None] = lambda: None) -> TaskFacts:
        """Let the oracle collect the facts about the task; return them.

        `give_way` is called between two runs of the reference, while the device is idle, if a
        timing waits for the device's lock.
        """
        with self.giving_way(give_way):
            facts = TaskFacts.from_json(self._ask({"do": "describe"}))
        self.lean = facts.large
        return facts

    def examine(self, give_way: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Let the oracle examine the reference (`cuagent.verify.fitness`); return the findings.

        `give_way` is as in `describe`.
        """
        with self.giving_way(give_way):
            return self._ask({"do": "examine"})

    @contextmanager
    def giving_way(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Context in which `give_way` is called in the oracle's breaks: between two requests, and
        while it constructs a model on the CPU."""
        before, self._process.give_way = self._process.give_way, give_way
        try:
            yield
        finally:
            self._process.give_way = before

    def load_weights(self, kind: Weights, seed: int, arena: Arena) -> None:
        """Let the oracle use weights of `kind` from `seed`, and write the state dict to `arena`."""
        self.lend(arena)
        self.wait(self.post_weights(kind, seed, arena))

    def draw(self, kind: Inputs, seed: int, arena: Arena, slot: int = 0, step: int = 0) -> None:
        """Let the oracle draw inputs of `kind` from `seed` into a slot of `arena`.

        `step` is the number of the draw within a sweep.
        """
        self.lend(arena)
        self.wait(self.post_draw(kind, seed, arena, slot, step))

    def answer(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        seed: int,
        budget: PerturbationBudget,
    ) -> AnswerInfo:
        """Let the oracle write the answer for a slot of inputs to slot 0 of each arena in
        `answers`.
        """
        self.lend(inputs, *self.answer_arenas(answers))
        return AnswerInfo.from_json(
            self.wait(self.post_answer(inputs, slot, answers, 0, seed, budget))
        )

    # -- requests that return before their answers come, on arenas that were lent before

    def post_weights(self, kind: Weights, seed: int, arena: Arena, slot: int = 0) -> int:
        """Send the request of `load_weights` without waiting; return its number."""
        message = {"kind": kind, "seed": seed, "arena": self._lent[arena], "slot": slot}
        request = self._process.post({"do": "weights"} | message)
        self._weight_requests.add(request)
        self.weights = kind, seed
        return request

    def post_draw(self, kind: Inputs, seed: int, arena: Arena, slot: int, step: int = 0) -> int:
        """Send the request of `draw` without waiting; return its number."""
        message = {"kind": kind, "seed": seed, "arena": self._lent[arena], "slot": slot}
        return self._process.post({"do": "draw", "step": step} | message)

    def post_answer(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        target: int,
        seed: int,
        budget: PerturbationBudget,
    ) -> int:
        """Send the request of `answer`, with the slot `target`, without waiting; return its number.

        For a large task the answer in the reference's own precision, which is a whole run, is
        waited for first. The memory of the other parts is allocated only then.
        """
        if self.lean:
            self.release(answers)
            self.lend(inputs, answers["declared"])
            declared = {"declared": self._lent[answers["declared"]], "target": target}
            self._ask({"do": "declare", "inputs": self._lent[inputs], "slot": slot} | declared)
            self.lend(*(answers[name] for name in ANSWER_ARENAS))
        lent = {name: self._lent[answers[name]] for name in ANSWER_ARENAS}
        message = {"inputs": self._lent[inputs], "slot": slot, "target": target, "seed": seed}
        return self._process.post({"do": "answer"} | message | lent | asdict(budget))

    def answer_arenas(self, answers: dict[str, Arena]) -> list[Arena]:
        """Return the arenas of an answer that the oracle must map before a request.

        Empty for a large task, whose requests map them when they are needed.
        """
        return [] if self.lean else [answers[name] for name in ANSWER_ARENAS]

    def release(self, answers: dict[str, Arena]) -> None:
        """Release the memory of a large task's answer until the next one."""
        for arena in answers.values() if self.lean else ():
            self.forget(arena)
            arena.give_back()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.wait(self._process.post(message))

    def wait(self, request: int) -> dict[str, Any]:
        """Wait for the answer to a request and return it. Raises TaskError, OracleLost."""
        self._weight_requests.discard(request)
        try:
            return self._process.wait(request)
        except (TaskError, OracleLost):
            self.weights = None
            raise

    def await_all(self) -> None:
        """Wait until every request was answered. Raises OracleLost."""
        self._process.await_all()

    def drop(self) -> set[int]:
        """Cancel the requests that the oracle has not begun; return their numbers.

        Waits for the request that is in progress.
        """
        dropped = self._process.drop()
        if dropped & self._weight_requests:
            self.weights = None
        self._weight_requests -= dropped
        return dropped

    def ignore_all(self) -> None:
        """Discard the answers to all requests that were sent so far."""
        self._process.ignore_all()
        self._weight_requests.clear()

    def sensitivity(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        target: int,
        seed: int,
        pairs: int,
    ) -> Sensitivity:
        """Let the oracle measure the sensitivity of the answer in slot `target`; return it.

        `answers` (moved, tied) are filled. `pairs` perturbation pairs are drawn from `seed`.
        """
        names = ("precise", "moved", "tied")
        self.lend(inputs, *(answers[name] for name in names))
        lent = {name: self._lent[answers[name]] for name in names}
        message = {
            "do": "sensitivity",
            "inputs": self._lent[inputs],
            "slot": slot,
            "target": target,
        }
        answer = self._ask(message | lent | {"seed": seed, "pairs": pairs})
        moved, tied = (answers[name].tensors() for name in ("moved", "tied"))
        return Sensitivity(
            moved, answer["carried"], tied, answer["undecided"], answer["roundoff_chooses"]
        )

    def reorder(self, inputs: Arena, slot: int, answers: dict[str, Arena], order: int) -> bool:
        """Let the oracle write the outputs under tie order ORDERS[order] to `answers["reordered"]`.

        Returns False if the run fails, or if only one order is right.
        """
        self.lend(inputs, answers["reordered"])
        message = {"do": "reorder", "inputs": self._lent[inputs], "slot": slot, "order": order}
        return self._ask(message | {"reordered": self._lent[answers["reordered"]]})["ran"]

    def forget(self, arena: Arena) -> None:
        """Let the oracle unmap an arena that will be closed.

        Does nothing if the process has ended.
        """
        number = self._lent.pop(arena, None)
        if number is not None and self.alive:
            self._ask({"do": "detach", "arena": number})

    def close(self) -> None:
        """End the oracle's process. Idempotent."""
        self._process.close()

    def lend(self, *arenas: Arena) -> None:
        """Let the oracle map these arenas, if it has not yet."""
        for arena in arenas:
            if arena not in self._lent:
                number = next(self._arena_ids)
                description, descriptors = arena.describe()
                message = {"do": "attach", "arena": number, "description": description}
                self.wait(self._process.post(message, descriptors))
                self._lent[arena] = number
