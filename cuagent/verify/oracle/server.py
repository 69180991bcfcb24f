"""The oracle's program: it answers the referee's requests about one task.

Trusted: it runs the user's module and no candidate code, so it answers in JSON. Results go into
arenas that no worker borrows. Errors of the user's module are sent back as text. `two_precisions`
runs the reference; `describe` collects the facts about it.

Invariant: an answer is sent after the device finished, so that its results are in the arenas.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.sandbox import harden
from cuagent.task import Device, Precision, TaskError, TreeError, flatten, open_reference
from cuagent.task.memory import shortage
from cuagent.task.plain import task_from_json
from cuagent.verify.fitness.examine import examine
from cuagent.verify.fitness.hidden import hidden_dependencies
from cuagent.verify.inputs.kinds import AMONG_OWN, SWEEPS, Inputs, sweep_seed
from cuagent.verify.inputs.weights import Weights, derive_weights
from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.describe import describe
from cuagent.verify.oracle.places import NearTies, write_places
from cuagent.verify.oracle.spread import Spread
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.rules.bounds import reach, sequential
from cuagent.verify.trace.selections import ReferenceTrace
from cuagent.worker.arms import set_precision
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.memory.arena import Arena, fill, settle
from cuagent.worker.memory.heap import give_back, keep_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_PERTURBATIONS, MIN_PERTURBATIONS = 8, 2
"""Largest and least number of perturbations for the spread of one answer."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Answer requests until the referee closes the channel."""
    keep_memory()
    program: _Oracle | None = None
    for message, descriptors in _requests(channel):
        try:
            if program is None:
                program = _Oracle(folder)
            answer = program.handle(message, descriptors)
            program.finish()
        except (TaskError, TreeError) as error:
            answer = {"error": str(error)}
        # Process boundary: the user's module failed.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"the reference failed: {type(error).__name__}: {text}"}
            if short := shortage(error):
                answer = {"memory": f"the reference {short}"}
        send_message(channel, answer)


def _requests(channel: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Yield the requests in order until the referee closes the channel.

    A "drop" that has arrived cancels all requests before it.
    """
    queue: deque[tuple[dict[str, Any], list[int]]] = deque()
    while True:
        while not queue or select.select([channel], [], [], 0)[0]:
            if (received := receive_message(channel)) is None:
                return
            queue.append(received)
            if received[0]["do"] == "drop":
                for _ in range(len(queue) - 1):
                    send_message(channel, {"dropped": True})
                queue.clear()
                send_message(channel, {})
        yield queue.popleft()


class _Oracle:
    """State of the oracle: facts about the task, the reference with its current weights, lent
    arenas."""

    def __init__(self, folder: Path) -> None:
        """Raises TaskError if the reference does not run."""
        import torch

        task = task_from_json(json.loads((folder / "task.json").read_text()))
        if task.device is Device.CPU:
            harden()
        # The oracle is as exact as the task's dtypes allow, for any precision of the candidate.
        set_precision(Precision.MATCH)
        torch.set_grad_enabled(False)
        self.task = task
        self.arenas: dict[int, Arena] = {}
        self.description = describe(open_reference(task))
        self.reference = self.description.reference
        self.spread = Spread(self.reference, 0)
        self.sweep_base: tuple[int, list[Tensor]] | None = None
        """Seed and own inputs that the draws of the last sweep share."""
        harden()  # on CUDA only now, because the driver first names its threads in /proc/self

    def handle(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Answer one request; `descriptors` belong to an arena that the referee lends."""
        match message["do"]:
            case "describe":
                return self.description.facts.to_json()
            case "examine":
                reference = self.reference
                found = examine(reference.declared, reference.call_directly, reference.own_inputs)
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
                self.draw(Inputs(message["kind"]), message["seed"], message["step"], target)
            case "answer":
                return self.answer(message)
            case "sensitivity":
                return self.sensitivity(message)
            case "reorder":
                return self.reorder(message)
        return {}

    def finish(self) -> None:
        """Wait for the device, and release unused memory of a large task."""
        device = self.task.device.value
        settle(device)
        if self.description.facts.large:
            give_back(device)

    def load_weights(self, kind: Weights, seed: int, target: list[Tensor]) -> None:
        """Construct a model from `seed`, change its weights to `kind`, and write its state dict to
        `target`."""
        model = self.reference.opened.model(seed)
        parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        if kind in (Weights.GROWN, Weights.PAST):
            state = self._load_grown(kind, model, parameters, seed)
        else:
            state = derive_weights(kind, model.state_dict(), parameters, seed)
            model.load_state_dict(state)
        self.spread = Spread(self.reference, seed)
        self.reference.set_model(model)
        for view, tensor in zip(target, state.values(), strict=True):
            view.copy_(tensor)

    def _load_grown(
        self, kind: Weights, model: nn.Module, parameters: frozenset[str], seed: int
    ) -> dict[str, Tensor]:
        """Load and return grown weights that the model accepts on its own inputs, else shaken."""
        inputs, roles = self.reference.own_inputs(seed), self.description.roles
        original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        finite = [x.isfinite() for x in self.reference.run(model, inputs)]
        for tried, positive in ((roles, False), (roles, True), (roles.without_buffers, True)):
            state = derive_weights(kind, original, parameters, seed, tried, positive=positive)
            model.load_state_dict(state)
            run = partial(self.reference.run, model, inputs)
            results = sensitivity.run_or_none(run, nullcontext())
            if results is not None and all(
                bool((x.isfinite() | ~usual).all())
                for x, usual in zip(results, finite, strict=True)
            ):
                return state
        state = derive_weights(Weights.SHAKEN, original, parameters, seed)
        model.load_state_dict(state)
        return state

    def draw(self, kind: Inputs, seed: int, step: int, target: list[Tensor]) -> None:
        """Write inputs of `kind` from `seed` to `target`."""
        base = self._base_inputs(kind, seed, step, target)
        drawn = self.description.repertoire.drawn(kind, base, seed, step)
        if kind is Inputs.VARIED and not (
            self.description.accepts and self.description.accepts(drawn)
        ):
            drawn = base  # the reference rejects this sample, unlike the first ones
        for view, tensor in zip(target, drawn, strict=True):
            fill(view, tensor)

    def _base_inputs(
        self, kind: Inputs, seed: int, step: int, target: list[Tensor]
    ) -> list[Tensor]:
        """Return the inputs that a draw of `kind` is derived from.

        That is one of the task's own draws, which takes time. If only its shapes matter, `target`
        is used instead. Draws of a sweep, which go through all values of one kind, share the other
        inputs.
        """
        if kind not in AMONG_OWN and all(tensor.is_floating_point() for tensor in target):
            return target
        if kind in SWEEPS:
            seed = sweep_seed(seed, step)
            if self.sweep_base is not None and self.sweep_base[0] == seed:
                return self.sweep_base[1]
        own, spec = flatten(self.reference.opened.inputs(seed), "inputs")
        if spec != self.reference.inputs or [x.shape for x in own] != [x.shape for x in target]:
            path = self.task.path
            raise TaskError(
                f"{path}: get_inputs() returns other shapes or scalars at each call; return the "
                "same ones"
            )
        if kind in SWEEPS:
            self.sweep_base = seed, own
        return own

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output, the fp64 output and its spread for one slot of inputs.

        The spread is zero if the message gives no seconds for it.
        """
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        declared, precise, spread = (
            self.arenas[message[name]].tensors(message["target"])
            for name in ("declared", "precise", "spread")
        )
        reference = self.reference
        run = _stored_outputs(reference.traced(inputs), declared)
        start = time.perf_counter()
        exact = _stored_outputs(reference.forward_fp64(inputs), precise)
        call_s = time.perf_counter() - start
        defined = run.defined and exact.defined
        finite = defined and reference.within_range(inputs, declared)
        fills_hidden = reference.answer_hides_fills(inputs, precise)
        if message["seconds"] is None:
            for view in spread:
                view.zero_()
            return {
                "finite": finite,
                "fills_hidden": fills_hidden,
                "perturbations": 0,
                "certain": False,
            }
        count = message["count"] or int(message["seconds"] / max(call_s, 1e-6))
        count = min(MAX_PERTURBATIONS, max(MIN_PERTURBATIONS, count))
        generator = reference.generator(message["seed"])
        self.spread.measure(inputs, precise, spread, count, generator)
        if reference.discrete:
            nearby = NearTies(
                self.description.facts.terms.longest, self.task.precision, message["opposites"]
            )
            perturbed_inputs = nearby.perturbed(reference.widened(inputs), generator, exact)
            runs = (reference.forward_fp64(inputs) for inputs in perturbed_inputs)
            places = nearby.find(exact, run, runs, spread)
            write_places(places, self.arenas[message["places"]].tensors(message["target"]))
        certain = message["check_decisions"] and reference.decided_equally(inputs) is True
        return {
            "finite": finite,
            "fills_hidden": fills_hidden,
            "perturbations": count,
            "certain": certain,
        }

    def sensitivity(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write how far each element of the answer moves within honest roundoff."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        reference = self.reference
        perturbed = sensitivity.PerturbedReference(
            run=lambda nearby: reference.forward_fp64(nearby).outputs,
            inputs=inputs,
            state=reference.precise.state_dict(),
            generator=reference.generator(message["seed"]),
            declared=lambda: reference.forward(inputs),
            answer=self.arenas[message["precise"]].tensors(message["target"]),
            to_fp64=reference.fp64,
        )
        pairs = message["pairs"]
        moved, tied = (self.arenas[message[name]].tensors() for name in ("moved", "tied"))
        step = sequential(self.description.facts.terms.longest)
        sensitivity.measure_change(
            perturbed,
            reach(self.description.facts.terms.signed, self.description.coarsest),
            step,
            pairs,
            moved,
        )
        if tied:
            sensitivity.measure_tie_change(perturbed, step, pairs, tied)
        return {
            "carried": sensitivity.carried(perturbed, pairs),
            "undecided": reference.decided_equally(inputs) is False,
        }

    def reorder(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output with equal elements chosen in another order."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        order = ordered(ORDERS[message["order"]])
        results = sensitivity.run_or_none(lambda: self.reference.forward(inputs), order)
        if results is not None:
            _copy(results, self.arenas[message["reordered"]].tensors())
        return {"ran": results is not None}


def _copy(results: list[Tensor], target: list[Tensor]) -> None:
    if [x.shape for x in results] != [x.shape for x in target]:
        raise TaskError("the reference's output changes its shape from call to call")
    for view, tensor in zip(target, results, strict=True):
        view.copy_(tensor)


def _stored_outputs(run: ReferenceTrace, target: list[Tensor]) -> ReferenceTrace:
    """Write the run's outputs to an arena and return the run with these views."""
    _copy(run.outputs, target)
    return replace(run, outputs=target)
