"""What runs in the oracle's process: it answers the referee's requests about one task.

Trusted: it runs the user's module and nothing of a candidate's, so it answers in JSON. What it
computes goes into arenas that no worker is lent. Errors of the user's module go back as text. How
the reference is run is in `two_precisions`, what is found out about it at first in `describe`.

Invariant: an answer is sent once the device is at rest, so that what it says lies in the arenas.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.sandbox import harden
from cuagent.task import Device, Precision, TaskError, TreeError, flatten, open_reference
from cuagent.task.memory import shortage
from cuagent.verify.fitness.examine import examine
from cuagent.verify.fitness.hidden import hidden_dependencies
from cuagent.verify.inputs.kinds import AMONG_OWN, MAX_SWEEP, SWEEPS, Inputs
from cuagent.verify.inputs.weights import Weights, derive_weights
from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.describe import describe
from cuagent.verify.oracle.places import NearTies, tell_places
from cuagent.verify.oracle.spread import Spread
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.rules.bounds import reach, sequential
from cuagent.verify.trace.selections import ReferenceTrace
from cuagent.worker.arms import set_precision, task_from_json
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.memory.arena import Arena, fill, settle
from cuagent.worker.memory.heap import give_back, keep_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_PERTURBATIONS, FEWEST_PERTURBATIONS = 8, 2


def serve(channel: socket.socket, folder: Path) -> None:
    """Answer until the referee hangs up."""
    keep_memory()
    program: _Oracle | None = None
    for message, descriptors in _requests(channel):
        try:
            if program is None:
                program = _Oracle(folder)
            answer = program.obey(message, descriptors)
            program.settle()
        except (TaskError, TreeError) as error:
            answer = {"error": str(error)}
        # The process boundary: the user's module failed.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"the reference fails: {type(error).__name__}: {text}"}
            if short := shortage(error):
                answer = {"memory": f"the reference {short}"}
        send_message(channel, answer)


def _requests(channel: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """In their order, until the referee hangs up; a "drop" that has come takes back all before."""
    waiting: deque[tuple[dict[str, Any], list[int]]] = deque()
    while True:
        while not waiting or select.select([channel], [], [], 0)[0]:
            if (received := receive_message(channel)) is None:
                return
            waiting.append(received)
            if received[0]["do"] == "drop":
                for _ in range(len(waiting) - 1):
                    send_message(channel, {"dropped": True})
                waiting.clear()
                send_message(channel, {})
        yield waiting.popleft()


class _Oracle:
    """What is known of the task, its reference with the weights last asked for, lent arenas."""

    def __init__(self, folder: Path) -> None:
        """Raises TaskError where the reference does not run."""
        import torch

        task = task_from_json(json.loads((folder / "task.json").read_text()))
        if task.device is Device.CPU:
            harden()
        # The oracle is as exact as the task's dtypes allow, whatever a candidate is admitted.
        set_precision(Precision.MATCH)
        torch.set_grad_enabled(False)
        self.task = task
        self.arenas: dict[int, Arena] = {}
        self.known = describe(open_reference(task))
        self.reference = self.known.reference
        self.spread = Spread(self.reference, 0)
        self.swept: tuple[int, list[Tensor]] | None = None
        """Own inputs that the draws of the last sweep have in common, and the seed they are of."""
        harden()  # on CUDA not before it has named its threads through /proc/self

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Do what the referee asks; `descriptors` are of an arena that it lends."""
        match message["do"]:
            case "describe":
                return self.known.about
            case "examine":
                reference = self.reference
                found = examine(reference.declared, reference.as_it_is, reference.own)
                return {**found, **hidden_dependencies(reference.opened, found)}
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self.arenas.pop(message["arena"]).close()
            case "weights":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.load_weights(Weights(message["kind"]), message["seed"], target)
            case "draw":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.draw(Inputs(message["kind"]), message["seed"], target)
            case "answer":
                return self.answer(message)
            case "doubt":
                return self.sensitivity(message)
            case "reorder":
                return self.reorder(message)
        return {}

    def settle(self) -> None:
        """The device is at rest, and memory that a large task needs elsewhere is given back."""
        device = self.task.device.value
        settle(device)
        if self.known.large:
            give_back(device)

    def load_weights(self, kind: Weights, seed: int, target: list[Tensor]) -> None:
        """Construct a model from `seed`, move its weights to `kind`, write its state dict."""
        model = self.reference.opened.model(seed)
        parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = derive_weights(kind, given, parameters, seed, self.known.roles)
        model.load_state_dict(state)
        if kind in (Weights.GROWN, Weights.PAST) and not self._finite(model, seed):
            state = derive_weights(kind, given, parameters, seed, self.known.roles, positive=True)
            model.load_state_dict(state)
        self.spread = Spread(self.reference, seed)
        self.reference.take(model)
        for view, tensor in zip(target, state.values(), strict=True):
            view.copy_(tensor)

    def _finite(self, model: nn.Module, seed: int) -> bool:
        """Whether a model is, on the task's own inputs."""
        results = self.reference.run(model, self.reference.own(seed))
        return all(bool(x.isfinite().all()) for x in results)

    def draw(self, kind: Inputs, seed: int, target: list[Tensor]) -> None:
        """Write inputs of `kind` from `seed`."""
        base = self._base(kind, seed, target)
        drawn = self.known.repertoire.drawn(kind, base, seed)
        if kind is Inputs.VARIED and not (self.known.takes and self.known.takes(drawn)):
            drawn = base  # the samples at first were taken, this one would not be
        for view, tensor in zip(target, drawn, strict=True):
            fill(view, tensor)

    def _base(self, kind: Inputs, seed: int, target: list[Tensor]) -> list[Tensor]:
        """What a draw of `kind` is derived from: one of the task's own, which takes its time.

        Where nothing but its forms would be left of it, those of `target` do; draws of a sweep,
        which go through all values of one kind, have the others in common.
        """
        if kind not in AMONG_OWN and all(tensor.is_floating_point() for tensor in target):
            return target
        if kind in SWEEPS:
            seed //= MAX_SWEEP
            if self.swept is not None and self.swept[0] == seed:
                return self.swept[1]
        own, spec = flatten(self.reference.opened.inputs(seed), "inputs")
        if spec != self.reference.inputs or [x.shape for x in own] != [x.shape for x in target]:
            path = self.task.path
            raise TaskError(f"{path}: get_inputs() gives other shapes or scalars at every call")
        if kind in SWEEPS:
            self.swept = seed, own
        return own

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output, the fp64 output and its spread for one slot of inputs.

        The spread is zero where no seconds are given for it.
        """
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        declared, precise, spread = (
            self.arenas[message[name]].tensors(message["target"])
            for name in ("declared", "precise", "spread")
        )
        reference = self.reference
        run = _told(reference.followed(inputs), declared)
        begun = time.perf_counter()
        exact = _told(reference.exactly(inputs), precise)
        each = time.perf_counter() - begun
        defined = run.defined and exact.defined
        finite = defined and reference.fits(inputs, declared)
        meant = reference.means(inputs, precise)
        if message["seconds"] is None:
            for view in spread:
                view.zero_()
            return {"finite": finite, "meant": meant, "perturbations": 0, "certain": False}
        count = message["count"] or int(message["seconds"] / max(each, 1e-6))
        count = min(MOST_PERTURBATIONS, max(FEWEST_PERTURBATIONS, count))
        generator = reference.generator(message["seed"])
        self.spread.measure(inputs, precise, spread, count, generator)
        if reference.discrete:
            near = NearTies(self.known.terms.longest, self.task.precision, message["opposites"])
            perturbed_inputs = near.perturbed(reference.wide(inputs), generator, exact)
            runs = (reference.exactly(inputs) for inputs in perturbed_inputs)
            places = near.settle(exact, run, runs, spread)
            tell_places(places, self.arenas[message["places"]].tensors(message["target"]))
        certain = message["decided"] and reference.certain(inputs) is True
        return {"finite": finite, "meant": meant, "perturbations": count, "certain": certain}

    def sensitivity(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write how far each element of the answer moves within honest roundoff."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        reference = self.reference
        moving = sensitivity.Reference(
            run=lambda near: reference.exactly(near).outputs,
            inputs=inputs,
            state=reference.precise.state_dict(),
            generator=reference.generator(message["seed"]),
            declared=lambda: reference.forward(inputs),
            answer=self.arenas[message["precise"]].tensors(message["target"]),
            wide=reference.fp64,
        )
        pairs = message["pairs"]
        moved, tied = (self.arenas[message[name]].tensors() for name in ("moved", "tied"))
        step = sequential(self.known.terms.longest)
        sensitivity.move(
            moving, reach(self.known.terms.signed, self.known.coarsest), step, pairs, moved
        )
        if tied:
            sensitivity.choose(moving, step, pairs, tied)
        return {
            "carried": sensitivity.carried(moving, pairs),
            "undecided": reference.certain(inputs) is False,
        }

    def reorder(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output where equals are chosen otherwise."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        order = ordered(ORDERS[message["order"]])
        results = sensitivity.attempted(lambda: self.reference.forward(inputs), order)
        if results is not None:
            _copy(results, self.arenas[message["reordered"]].tensors())
        return {"ran": results is not None}


def _copy(results: list[Tensor], target: list[Tensor]) -> None:
    if [x.shape for x in results] != [x.shape for x in target]:
        raise TaskError("the reference's output changes its shape from call to call")
    for view, tensor in zip(target, results, strict=True):
        view.copy_(tensor)


def _told(run: ReferenceTrace, target: list[Tensor]) -> ReferenceTrace:
    """The run, its outputs in an arena and nowhere else."""
    _copy(run.outputs, target)
    return replace(run, outputs=target)
