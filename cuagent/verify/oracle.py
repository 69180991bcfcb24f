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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cuagent.task import Task, TaskError
from cuagent.verify.inputs import LENIENT, PLACED, Inputs, Weights
from cuagent.verify.orders import ORDERS
from cuagent.verify.tolerance import Moved
from cuagent.worker import Arena, Nursery, NurseryError
from cuagent.worker.arms import task_to_json
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.warm import DEFECT

if TYPE_CHECKING:
    from torch import Tensor

ANSWER_S = 600.0
OPPOSITES = 6
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

    def tells(self, kind: Inputs) -> bool:
        """Whether candidates can be held to the answer to inputs of `kind`."""
        return self.meant and (self.finite or kind in (*PLACED, *LENIENT))


@dataclass(frozen=True)
class Doubt:
    """What an oracle is asked about one draw before an error is held against anybody."""

    oracle: Oracle
    inputs: Arena
    slot: int
    answers: dict[str, Arena]
    seed: int
    pairs: int
    """Of perturbations."""

    @cached_property
    def moved(self) -> Moved:
        return self.oracle.doubt(self.inputs, self.slot, self.answers, self.seed, self.pairs)

    def reordered(self) -> Iterator[list[Tensor]]:
        """The reference's answers where equals are chosen otherwise, each until the next."""
        views = self.answers["reordered"].tensors()
        for order in range(len(ORDERS[: self.pairs]) if views else 0):
            if self.oracle.reorder(self.inputs, self.slot, self.answers, order):
                yield views


class Oracle:
    """Raises TaskError where the user's module fails, OracleLost where the process does."""

    def __init__(self, nursery: Nursery, task: Task) -> None:
        self._nursery = nursery
        self._path = task.path
        self._folder = Path(tempfile.mkdtemp(prefix="oracle-", dir=nursery.folder))
        (self._folder / "task.json").write_text(json.dumps(task_to_json(task)))
        self._ids = itertools.count()
        self._lent: dict[Arena, int] = {}
        self._child = nursery.fork("cuagent.verify.oracle_program", self._folder, {})
        self.lost = False
        self.weights: tuple[Weights, int] | None = None
        """Kind and seed of those it has taken on."""

    @property
    def alive(self) -> bool:
        """Whether it may be asked again."""
        return not self.lost and self._child.alive

    def describe(self) -> dict[str, Any]:
        return self._ask({"do": "describe"})

    def examine(self) -> dict[str, Any]:
        return self._ask({"do": "examine"})

    def weigh(self, kind: Weights, seed: int, arena: Arena) -> None:
        """Take on weights of `kind` from `seed` and write the state dict to `arena`."""
        number = self._lend(arena)
        self._ask({"do": "weights", "kind": kind, "seed": seed, "arena": number})
        self.weights = kind, seed

    def draw(self, kind: Inputs, seed: int, arena: Arena, slot: int = 0) -> None:
        """Write inputs of `kind` from `seed` to a slot."""
        number = self._lend(arena)
        self._ask({"do": "draw", "kind": kind, "seed": seed, "arena": number, "slot": slot})

    def answer(
        self,
        inputs: Arena,
        slot: int,
        answers: dict[str, Arena],
        seed: int,
        seconds: float | None,
        opposites: int = OPPOSITES,
        count: int = 0,
    ) -> Answered:
        """Fill `answers` (declared, precise, spread, places).

        The spread gets as many perturbations as fit into about `seconds`, 2 to 8, or `count` where
        an earlier verdict is given again; without `seconds` it is zero. Ties are looked for with
        `opposites` pairs of them.
        """
        lent = {name: self._lend(arena) for name, arena in answers.items()}
        message = {"do": "answer", "inputs": self._lend(inputs), "slot": slot, "seed": seed}
        how = {"seconds": seconds, "opposites": opposites, "count": count}
        answer = self._ask(message | lent | how)
        return Answered(answer["finite"], answer["meant"], answer["perturbations"])

    def doubt(
        self, inputs: Arena, slot: int, answers: dict[str, Arena], seed: int, pairs: int
    ) -> Moved:
        """How far the answer moves when honest roundoff moves what it is made of; fill `answers`
        (moved, tied)."""
        lent = {name: self._lend(answers[name]) for name in ("moved", "tied")}
        message = {"do": "doubt", "inputs": self._lend(inputs), "slot": slot}
        answer = self._ask(message | lent | {"seed": seed, "pairs": pairs})
        moved, tied = (answers[name].tensors() for name in ("moved", "tied"))
        return Moved(moved, answer["carried"], tied)

    def reorder(self, inputs: Arena, slot: int, answers: dict[str, Arena], order: int) -> bool:
        """Fill `answers` (reordered) where equals are chosen in that order; whether it ran."""
        message = {"do": "reorder", "inputs": self._lend(inputs), "slot": slot, "order": order}
        return self._ask(message | {"reordered": self._lend(answers["reordered"])})["ran"]

    def forget(self, arena: Arena) -> None:
        """Take back an arena before it is closed."""
        if arena in self._lent:
            self._ask({"do": "detach", "arena": self._lent.pop(arena)})

    def close(self) -> None:
        with contextlib.suppress(NurseryError):  # then the process is gone with its parent
            self._nursery.end(self._child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _lend(self, arena: Arena) -> int:
        if arena not in self._lent:
            number = next(self._ids)
            description, descriptors = arena.describe()
            message = {"do": "attach", "arena": number, "description": description}
            self._ask(message, descriptors)
            self._lent[arena] = number
        return self._lent[arena]

    def _ask(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
        channel = self._child.channel
        deadline = time.monotonic() + ANSWER_S
        try:
            send_message(channel, message, descriptors)
            readable, _, _ = select.select([channel], [], [], deadline - time.monotonic())
            received = receive_message(channel) if readable else None
        except OSError as error:
            raise self._gone(silent=False) from error
        if received is None:
            raise self._gone(silent=not readable)
        answer = received[0]
        if "memory" in answer:
            raise OracleLost(answer["memory"])
        if "error" in answer:
            raise TaskError(answer["error"])
        return answer

    def _gone(self, *, silent: bool) -> TaskError | OracleLost:
        """Why there is no answer: the user's module ended its process, or the machine did."""
        self.lost = True
        if silent:
            return OracleLost(f"the reference's process did not answer within {ANSWER_S:g} s")
        if self._child.pidfd is not None:
            # The channel closes a moment before the process is gone; its own status is wanted.
            select.select([self._child.pidfd], [], [], 1.0)
        try:
            status = self._nursery.end(self._child)
        except NurseryError as error:
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
