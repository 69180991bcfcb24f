"""The oracle as the referee holds it: a trusted process that draws inputs and knows the answers.

It shares nothing with a worker but arenas of inputs and weights, which the referee lends to both.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cuagent.task import Task, TaskError
from cuagent.verify.inputs.kinds import LENIENT, PLACED, Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.tie_orders import ORDERS
from cuagent.verify.rules.types import Sensitivity
from cuagent.worker import Arena, ForkServer, ForkServerError
from cuagent.worker.arms import task_to_json
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.fork_server_main import DEFECT

if TYPE_CHECKING:
    from torch import Tensor

ANSWER_S = 600.0
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""No speed is measured in the oracle, and of contexts with one queue to the GPU instead of eight a
machine makes nearly twice as many (docs/research/log.md)."""
OPPOSITES = 6
TOLD = ("declared", "precise", "spread", "places")
"""Arenas that every answer fills."""
OWN_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals that a process draws upon itself; others come from outside."""


class OracleLost(Exception):
    """The trusted process is gone or does not answer: the machine's fault."""


class Answered(NamedTuple):
    """What the oracle says of an answer beside the answer."""

    finite: bool
    """Whether the reference is, on these inputs."""
    meant: bool
    """Whether these inputs lie within what the reference's marks leave room for (`marks`)."""
    perturbations: int
    certain: bool
    """See `tolerance.Expected`."""

    @classmethod
    def of(cls, reply: dict[str, Any]) -> Answered:
        """As the oracle's process says it."""
        return cls(reply["finite"], reply["meant"], reply["perturbations"], reply["certain"])

    def is_decisive(self, kind: Inputs, weights: Weights = Weights.OWN) -> bool:
        """Whether candidates can be held to the answer to inputs of `kind`."""
        placed = kind in PLACED and weights is not Weights.SUNK  # no task has such by itself
        return self.meant and (self.finite or placed or kind in LENIENT)


@dataclass(frozen=True)
class PerturbationBudget:
    """How much an answer is perturbed, to learn how firm it is."""

    seconds: float | None
    """About how long, for the spread; where None it is zero, and ties are not looked for."""
    opposites: int = OPPOSITES
    """Pairs of perturbations by which ties are looked for."""
    count: int = 0
    """Of perturbations, where an earlier verdict is given again; else as many as there is time for,
    2 to 8."""
    decided: bool = False
    """Whether it is looked by what numbers something is decided."""


@dataclass(frozen=True)
class SensitivityQuery:
    """What an oracle is asked about one draw before an error is held against anybody."""

    oracle: Oracle
    inputs: Arena
    slot: int
    answers: dict[str, Arena]
    seed: int
    pairs: int
    """Of perturbations."""
    ready: Callable[[], None] = lambda: None
    """Called before each question."""
    target: int = 0
    """Slot where the answer lies."""

    @cached_property
    def moved(self) -> Sensitivity:
        """How far the answer moves within honest roundoff."""
        self.ready()
        return self.oracle.sensitivity(
            self.inputs, self.slot, self.answers, self.target, self.seed, self.pairs
        )

    def reordered(self) -> Iterator[list[Tensor]]:
        """The reference's answers where equals are chosen otherwise, each until the next."""
        reordered = self.answers["reordered"]
        for order in range(len(ORDERS[: self.pairs]) if reordered.layout.leaves else 0):
            self.ready()
            if self.oracle.reorder(self.inputs, self.slot, self.answers, order):
                yield reordered.tensors()


class Oracle:
    """Raises TaskError where the user's module fails, OracleLost where the process does."""

    def __init__(self, fork_server: ForkServer, task: Task) -> None:
        self._fork_server = fork_server
        self._path = task.path
        self._folder = Path(tempfile.mkdtemp(prefix="oracle-", dir=fork_server.folder))
        (self._folder / "task.json").write_text(json.dumps(task_to_json(task)))
        self._ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self._child = fork_server.fork("cuagent.verify.oracle.server", self._folder, ONE_QUEUE)
        self.lost = False
        self.weights: tuple[Weights, int] | None = None
        """Kind and seed of those it has taken on once all is done that was asked for."""
        self._weight_requests: set[int] = set()
        self._numbers = itertools.count()
        self._outstanding: deque[int] = deque()
        """Requests without an answer so far; answers come in their order."""
        self._answers: dict[int, dict[str, Any]] = {}

    @property
    def alive(self) -> bool:
        """Whether it may be asked again."""
        return not self.lost and self._child.alive

    @property
    def is_idle(self) -> bool:
        """Whether it owes no answer."""
        return not self._outstanding

    def describe(self) -> dict[str, Any]:
        return self._ask({"do": "describe"})

    def examine(self) -> dict[str, Any]:
        return self._ask({"do": "examine"})

    def load_weights(self, kind: Weights, seed: int, arena: Arena) -> None:
        """Take on weights of `kind` from `seed` and write the state dict to `arena`."""
        self.lend(arena)
        self.wait(self.post_weights(kind, seed, arena))

    def draw(self, kind: Inputs, seed: int, arena: Arena, slot: int = 0) -> None:
        """Write inputs of `kind` from `seed` to a slot."""
        self.lend(arena)
        self.wait(self.post_draw(kind, seed, arena, slot))

    def answer(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        seed: int,
        budget: PerturbationBudget,
    ) -> Answered:
        """Fill the first slots of `answers` (declared, precise, spread, places)."""
        self.lend(inputs, *(answers[name] for name in TOLD))
        return Answered.of(self.wait(self.post_answer(inputs, slot, answers, 0, seed, budget)))

    # -- requests whose answers are waited for later, on arenas that have been lent

    def post_weights(self, kind: Weights, seed: int, arena: Arena, slot: int = 0) -> int:
        """`weigh`, into a slot."""
        about = {"kind": kind, "seed": seed, "arena": self._lent[arena], "slot": slot}
        request = self._post({"do": "weights"} | about)
        self._weight_requests.add(request)
        self.weights = kind, seed
        return request

    def post_draw(self, kind: Inputs, seed: int, arena: Arena, slot: int) -> int:
        """`draw`."""
        about = {"kind": kind, "seed": seed, "arena": self._lent[arena], "slot": slot}
        return self._post({"do": "draw"} | about)

    def post_answer(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        target: int,
        seed: int,
        budget: PerturbationBudget,
    ) -> int:
        """`answer`, into slot `target`."""
        lent = {name: self._lent[answers[name]] for name in TOLD}
        about = {"inputs": self._lent[inputs], "slot": slot, "target": target, "seed": seed}
        return self._post({"do": "answer"} | about | lent | asdict(budget))

    def wait(self, request: int) -> dict[str, Any]:
        """The answer. Raises TaskError, OracleLost."""
        while request not in self._answers:
            self._receive()
        self._weight_requests.discard(request)
        answer = self._answers.pop(request)
        if "memory" in answer or "error" in answer:
            self.weights = None
        if "memory" in answer:
            raise OracleLost(answer["memory"])
        if "error" in answer:
            raise TaskError(answer["error"])
        return answer

    def await_all(self) -> None:
        """Until it has nothing to do. Raises OracleLost."""
        while self._outstanding:
            self._receive()

    def drop(self) -> set[int]:
        """Take back the requests that it has not begun: these; the one at work is waited for."""
        if not self._outstanding:
            return set()
        self.wait(self._post({"do": "drop"}))
        dropped = {number for number, answer in self._answers.items() if "dropped" in answer}
        for number in dropped:
            del self._answers[number]
        if dropped & self._weight_requests:
            self.weights = None
        self._weight_requests -= dropped
        return dropped

    def ignore_all(self) -> None:
        """Nobody waits for what it was asked so far."""
        self._answers.clear()
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
        """How far the answer in slot `target` moves when honest roundoff moves what it is made of;
        fill `answers` (moved, tied)."""
        names = ("precise", "moved", "tied")
        self.lend(inputs, *(answers[name] for name in names))
        lent = {name: self._lent[answers[name]] for name in names}
        message = {"do": "doubt", "inputs": self._lent[inputs], "slot": slot, "target": target}
        answer = self._ask(message | lent | {"seed": seed, "pairs": pairs})
        moved, tied = (answers[name].tensors() for name in ("moved", "tied"))
        return Sensitivity(moved, answer["carried"], tied, answer["undecided"])

    def reorder(self, inputs: Arena, slot: int, answers: dict[str, Arena], order: int) -> bool:
        """Fill `answers` (reordered) where equals are chosen in that order; whether it ran."""
        self.lend(inputs, answers["reordered"])
        message = {"do": "reorder", "inputs": self._lent[inputs], "slot": slot, "order": order}
        return self._ask(message | {"reordered": self._lent[answers["reordered"]]})["ran"]

    def forget(self, arena: Arena) -> None:
        """Take back an arena before it is closed; a process that is gone holds none."""
        number = self._lent.pop(arena, None)
        if number is not None and self.alive:
            self._ask({"do": "detach", "arena": number})

    def close(self) -> None:
        """End the process. Idempotent."""
        self.lost = True
        with contextlib.suppress(ForkServerError):  # then the process is gone with its parent
            self._fork_server.end(self._child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def lend(self, *arenas: Arena) -> None:
        """Make arenas known to it, those that are not yet."""
        for arena in arenas:
            if arena not in self._lent:
                number = next(self._ids)
                description, descriptors = arena.describe()
                message = {"do": "attach", "arena": number, "description": description}
                self.wait(self._post(message, descriptors))
                self._lent[arena] = number

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        return self.wait(self._post(message))

    def _post(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> int:
        self._assure()
        try:
            send_message(self._child.channel, message, descriptors)
        except OSError as error:
            raise self._gone(silent=False) from error
        number = next(self._numbers)
        self._outstanding.append(number)
        return number

    def _receive(self) -> None:
        """Take in the next answer."""
        self._assure()
        channel = self._child.channel
        try:
            readable, _, _ = select.select([channel], [], [], ANSWER_S)
            received = receive_message(channel) if readable else None
        except OSError as error:
            raise self._gone(silent=False) from error
        if received is None:
            raise self._gone(silent=not readable)
        self._answers[self._outstanding.popleft()] = received[0]

    def _assure(self) -> None:
        if self.lost:
            raise OracleLost("the reference's process is gone")

    def _gone(self, *, silent: bool) -> TaskError | OracleLost:
        """Why there is no answer: the user's module ended its process, or the machine did."""
        self.lost = True
        if silent:
            return OracleLost(f"the reference's process did not answer within {ANSWER_S:g} s")
        if self._child.pidfd is not None:
            # The channel closes a moment before the process is gone; its own status is wanted.
            select.select([self._child.pidfd], [], [], 1.0)
        try:
            status = self._fork_server.end(self._child)
        except ForkServerError as error:
            return OracleLost(f"the reference's process is gone with its parent ({error})")
        how = None if status is None else _own_end(status)
        if how is None:
            return OracleLost("the reference's process was ended from outside")
        return TaskError(
            f"{self._path}: ended the process that ran it ({how}); "
            "a module must leave that to its caller"
        )


def _own_end(status: int) -> str | None:
    """How a process ended by its own doing; None where someone else ended it, or a defect did."""
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return None if code == DEFECT else f"exit code {code}"
    number = os.WTERMSIG(status)
    return signal.Signals(number).name if number in OWN_FAULTS else None
