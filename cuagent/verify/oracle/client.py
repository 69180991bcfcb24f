"""The referee's handle on the oracle: a trusted process that draws inputs and computes the answers.

It shares only arenas of inputs and weights with a worker; the referee lends these to both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
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
"""Pairs of opposite perturbations that search for ties."""
ANSWER_ARENAS = ("declared", "precise", "spread", "places")
"""Names of the arenas that every answer fills."""


class AnswerInfo(NamedTuple):
    """Properties of an answer that the oracle reports with it."""

    finite: bool
    """True if the reference is finite on these inputs."""
    fills_hidden: bool
    """True if the inputs are small enough for the reference's mask fill values (`mask_fills`)."""
    perturbations: int
    """Number of perturbations from which the spread was measured."""
    certain: bool
    """True if, on round inputs, all decisions depend on equal numbers in both precisions
    (`rules.types.Expected`)."""

    @classmethod
    def from_json(cls, reply: dict[str, Any]) -> AnswerInfo:
        """Return the properties from the JSON of the oracle's process."""
        return cls(reply["finite"], reply["fills_hidden"], reply["perturbations"], reply["certain"])

    def is_decisive(self, kind: Inputs, weights: Weights = Weights.OWN) -> bool:
        """Return True if the answer to inputs of `kind` may reject a candidate."""
        drawn_by_tasks = (
            kind in PLACED and weights is not Weights.SUNK
        )  # no task draws SUNK weights itself
        return self.fills_hidden and (self.finite or drawn_by_tasks or kind in LENIENT)


@dataclass(frozen=True)
class PerturbationBudget:
    """Limits of the perturbed runs for one answer."""

    seconds: float | None
    """Approximate seconds for the spread; None for a zero spread and no search for ties."""
    opposites: int = TIE_PAIRS
    """Pairs of opposite perturbations that search for ties."""
    count: int = 0
    """Number of perturbations in an earlier verdict that is repeated; 0 for a number from 2 to 8
    that depends on `seconds`."""
    check_decisions: bool = False
    """True to check if decisions depend on equal numbers in both precisions."""


@dataclass(frozen=True)
class SensitivityQuery:
    """A question to the oracle about one draw, asked before an error rejects a candidate."""

    oracle: Oracle
    inputs: Arena
    slot: int
    answers: dict[str, Arena]
    seed: int
    pairs: int
    """Pairs of perturbations."""
    ready: Callable[[], None] = lambda: None
    """Function that is called before each request."""
    target: int = 0
    """Slot of the answer in the arenas `answers`."""

    @cached_property
    def moved(self) -> Sensitivity:
        """Changes of the answer that roundoff of a correct kernel may cause. Asked at first use."""
        self.ready()
        return self.oracle.sensitivity(
            self.inputs, self.slot, self.answers, self.target, self.seed, self.pairs
        )

    def reordered(self) -> Iterator[list[Tensor]]:
        """Yield the reference's answers with equal elements chosen in other orders, each valid
        until the next."""
        reordered = self.answers["reordered"]
        for order in range(len(ORDERS[: self.pairs]) if reordered.layout.leaves else 0):
            self.ready()
            if self.oracle.reorder(self.inputs, self.slot, self.answers, order):
                yield reordered.tensors()


class Oracle:
    """Handle on the oracle. Raises TaskError if the user's module fails or crashes its process,
    OracleLost if the process ends otherwise."""

    def __init__(
        self,
        fork_server: ForkServer,
        task: Task,
        budget: int | None = None,
        lock: Path | None = None,
    ) -> None:
        """`budget` limits the bytes of the device's memory. `lock` is the device's lock."""
        self._process = OracleProcess(fork_server, task, budget, lock)
        self._arena_ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self.lean = False
        """True for a large task: answers are computed in two requests and released after use."""
        self.weights: tuple[Weights, int] | None = None
        """Kind and seed of the weights in use once all requests are done; None if unknown."""
        self._weight_requests: set[int] = set()

    @property
    def pid(self) -> int:
        """Id of the oracle's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the oracle can take requests."""
        return self._process.alive

    @property
    def is_idle(self) -> bool:
        """True if no request is open."""
        return self._process.is_idle

    def describe(self, give_way: Callable[[], None] = lambda: None) -> TaskFacts:
        """Return the facts about the task.

        `give_way` is called between two runs of the reference, while the device is idle, if a
        timing waits for the device's lock.
        """
        self._process.give_way = give_way
        facts = TaskFacts.from_json(self._ask({"do": "describe"}))
        self.lean = facts.large
        return facts

    def examine(self, give_way: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return the findings on the reference (`cuagent.verify.fitness`). `give_way` is as in
        `describe`."""
        self._process.give_way = give_way
        return self._ask({"do": "examine"})

    def load_weights(self, kind: Weights, seed: int, arena: Arena) -> None:
        """Load weights of `kind` from `seed` in the oracle and write the state dict to `arena`."""
        self.lend(arena)
        self.wait(self.post_weights(kind, seed, arena))

    def draw(self, kind: Inputs, seed: int, arena: Arena, slot: int = 0, step: int = 0) -> None:
        """Write inputs of `kind` from `seed` to a slot; `step` is the number within a sweep."""
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
        """Write the answer to the first slots of `answers` (declared, precise, spread, places)."""
        self.lend(inputs, *self.answer_arenas(answers))
        return AnswerInfo.from_json(
            self.wait(self.post_answer(inputs, slot, answers, 0, seed, budget))
        )

    # -- requests that return before their answers come, on arenas that were lent before

    def post_weights(self, kind: Weights, seed: int, arena: Arena, slot: int = 0) -> int:
        """Request `load_weights` into a slot and return the request's number."""
        message = {"kind": kind, "seed": seed, "arena": self._lent[arena], "slot": slot}
        request = self._process.post({"do": "weights"} | message)
        self._weight_requests.add(request)
        self.weights = kind, seed
        return request

    def post_draw(self, kind: Inputs, seed: int, arena: Arena, slot: int, step: int = 0) -> int:
        """Request `draw` and return the request's number."""
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
        """Request `answer` into slot `target` and return the request's number.

        For a large task the answer in the reference's own precision, which is a whole run, is
        waited for first. Only then the memory of the others is allocated.
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
        """Return the arenas of answers to lend before requests: none for a large task, whose
        requests lend them when they are needed."""
        return [] if self.lean else [answers[name] for name in ANSWER_ARENAS]

    def release(self, answers: dict[str, Arena]) -> None:
        """Release the memory of a large task's answers until the next one."""
        for arena in answers.values() if self.lean else ():
            self.forget(arena)
            arena.give_back()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
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
        """Wait until no request is open. Raises OracleLost."""
        self._process.await_all()

    def drop(self) -> set[int]:
        """Cancel the requests that the oracle has not begun and return their numbers.

        Waits for the request that the oracle works on.
        """
        dropped = self._process.drop()
        if dropped & self._weight_requests:
            self.weights = None
        self._weight_requests -= dropped
        return dropped

    def ignore_all(self) -> None:
        """Discard the answers to all requests so far."""
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
        """Return how much the roundoff of a correct kernel may change the answer in slot `target`.

        Fills `answers` (moved, tied) with `pairs` pairs of perturbations from `seed`.
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
        """Write the answer with equal elements chosen by ORDERS[order] to `answers` (reordered).
        Returns False if the run fails, or if only one order is right."""
        self.lend(inputs, answers["reordered"])
        message = {"do": "reorder", "inputs": self._lent[inputs], "slot": slot, "order": order}
        return self._ask(message | {"reordered": self._lent[answers["reordered"]]})["ran"]

    def forget(self, arena: Arena) -> None:
        """Detach an arena before it is closed. Does nothing if the process is gone."""
        number = self._lent.pop(arena, None)
        if number is not None and self.alive:
            self._ask({"do": "detach", "arena": number})

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.close()

    def lend(self, *arenas: Arena) -> None:
        """Attach the arenas that the oracle does not have yet."""
        for arena in arenas:
            if arena not in self._lent:
                number = next(self._arena_ids)
                description, descriptors = arena.describe()
                message = {"do": "attach", "arena": number, "description": description}
                self.wait(self._process.post(message, descriptors))
                self._lent[arena] = number
