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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.device_lock import DeviceLock
from cuagent.sandbox import harden
from cuagent.task import Device, TaskError, TreeError, Values, open_reference
from cuagent.task.memory import SMALLER, shortage
from cuagent.task.plain import task_from_json
from cuagent.task.random_fills import RandomFills
from cuagent.task.settings import baseline_settings
from cuagent.verify.fitness.examine import examine
from cuagent.verify.fitness.hidden import hidden_dependencies
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.weights import Weights, derive_weights, shared_names
from cuagent.verify.oracle import sensitivity, sliced_answers
from cuagent.verify.oracle.describe import describe, sample_of
from cuagent.verify.oracle.facts import BUDGET, LOCK
from cuagent.verify.oracle.input_draws import InputDraws
from cuagent.verify.oracle.places import NearTies, write_places
from cuagent.verify.oracle.requests import Requests
from cuagent.verify.oracle.slice_checks import is_consistent
from cuagent.verify.oracle.slices import Slicing
from cuagent.verify.oracle.spread import Spread
from cuagent.verify.oracle.tie_orders import ORDERS, ordered
from cuagent.verify.rules.bounds import OWN_ARITHMETIC, reach, sequential
from cuagent.verify.tensors import FAILURES
from cuagent.verify.trace.reference_trace import ReferenceTrace
from cuagent.worker.breaks import Breaks
from cuagent.worker.channel import send_message
from cuagent.worker.memory.arena import Arena, synchronize
from cuagent.worker.memory.heap import (
    KEPT_BYTES,
    KEPT_SHARE,
    KEPT_SHARE_OF_MANY,
    give_back,
    give_back_surplus,
)
from cuagent.worker.sleeping_threads import let_threads_sleep

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_PERTURBATIONS, MIN_PERTURBATIONS = 8, 2
"""Largest and least number of perturbed runs that measure the spread of one answer."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Answer requests until the referee closes the channel."""
    program: _Oracle | None = None
    requests = Requests(channel)
    for message, descriptors in requests:
        try:
            if program is None:
                program = _Oracle(folder, channel, requests)
            program.breaks.give_way()
            answer = program.handle(message, descriptors)
            program.finish()
        except (TaskError, TreeError) as error:
            answer = {"error": str(error)}
        # Process boundary: the user's module failed.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"the reference failed: {type(error).__name__}: {text}"}
            if short := shortage(error):
                answer = {"memory": f"the reference {short}; {SMALLER}"}
        send_message(channel, answer)


class _Oracle:
    """State of the oracle's process: facts about the task, the reference with its weights, mapped
    arenas.
    """

    def __init__(self, folder: Path, channel: socket.socket, requests: Requests) -> None:
        """Open and describe the reference of the task in `folder`.

        Raises TaskError if it does not run.
        """
        import torch

        task = task_from_json(json.loads((folder / "task.json").read_text()))
        if task.device is Device.CPU:
            harden()
            let_threads_sleep()
        torch.set_grad_enabled(False)
        self.task = task
        self.arenas: dict[int, Arena] = {}
        budget = json.loads((folder / BUDGET).read_text())
        lock = json.loads((folder / LOCK).read_text())
        self.channel, self.budget = channel, budget
        self.kept_share = KEPT_SHARE if lock is None else KEPT_SHARE_OF_MANY
        device_lock = DeviceLock(None if lock is None else Path(lock))
        self.breaks = Breaks(channel, device_lock, task.device.value, requests.await_reply)
        self.fills = RandomFills()
        opened = replace(
            open_reference(task), constructing=self.constructing, values=Values.DRAWN_THERE
        )
        self.description = describe(opened, budget, self.breaks.give_way)
        self.reference = self.description.reference
        self.reference.before_call = None
        self.spread = Spread(self.reference, 0)
        self.declared_run: ReferenceTrace | None = None
        """Trace of the last "declare" request's run, which the next "answer" request uses."""
        self.draws = InputDraws(self.description)
        harden()  # on CUDA only now, because the driver first names its threads in /proc/self

    @contextmanager
    def constructing(self) -> Iterator[None]:
        """Context for the construction of a model, of which a verdict makes several from one
        seed."""
        with self.breaks.constructing(), self.fills.remembered():
            yield

    def handle(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Execute one request and return its answer; `descriptors` belong to an arena to map."""
        match message["do"]:
            case "describe":
                return self.description.facts.to_json()
            case "examine":
                return self.examine()
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self.arenas.pop(message["arena"]).close()
            case "weights":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.load_weights(Weights(message["kind"]), message["seed"], target)
            case "draw":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.draws.draw(Inputs(message["kind"]), message["seed"], message["step"], target)
            case "declare":
                target = self.arenas[message["declared"]].tensors(message["target"])
                inputs = self.arenas[message["inputs"]].tensors(message["slot"])
                self.declared_run = _stored_outputs(self.reference.traced(inputs), target)
            case "answer":
                return self.answer(message)
            case "sensitivity":
                with self._breaks_between_runs():
                    return self.sensitivity(message)
            case "reorder":
                return self.reorder(message)
        return {}

    def examine(self) -> dict[str, Any]:
        """Return the findings of `fitness.examine` and `fitness.hidden` on the reference."""
        reference, draw = self.reference, self.description.own_sample
        with self._breaks_between_runs():
            found = examine(reference.declared, reference.call_directly, draw)
            sample = partial(sample_of, reference)
            return {**found, **hidden_dependencies(reference.opened, found, sample)}

    @contextmanager
    def _breaks_between_runs(self) -> Iterator[None]:
        """Give the device up between two runs of the reference too, if a timing waits for it.

        The referee only waits meanwhile. A request of many runs of a recurrent network takes more
        than ten seconds.
        """
        self.reference.before_call = self.breaks.give_way
        try:
            yield
        finally:
            self.reference.before_call = None

    def finish(self) -> None:
        """Wait until the device has finished, and release memory that the next request does not
        need.

        A convolution in fp64 can leave 30 GB of workspace in torch's cache (H200).
        """
        device = self.task.device.value
        synchronize(device)
        large = self.description.facts.large
        if device == "cpu":
            if large:
                give_back(device)
        elif large or not select.select([self.channel], [], [], 0)[0]:
            kept = 0 if large else KEPT_BYTES
            give_back_surplus(kept, self.kept_share, self.budget)

    def load_weights(self, kind: Weights, seed: int, target: list[Tensor]) -> None:
        """Construct a model from `seed` with weights of `kind`, and use it from now on.

        Its state dict is written to `target`. Parameters that share memory have equal weights, as
        in every state dict of the reference, so a kernel need not share them.
        """
        model = self.reference.opened.model(seed)
        # A constructor may have changed torch's settings.
        baseline_settings(self.description.facts.settings, self.task.precision).apply()
        parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        if kind in (Weights.GROWN, Weights.PAST):
            state = self._load_grown(kind, model, parameters, seed)
        else:
            roles = self.description.roles
            state = derive_weights(kind, model.state_dict(), parameters, seed, roles)
            model.load_state_dict(state)
        self.spread = Spread(self.reference, seed)
        self.reference.set_model(model)
        loaded = model.state_dict()
        shared = shared_names(loaded)
        for view, (name, tensor) in zip(target, state.items(), strict=True):
            view.copy_(loaded[name] if name in shared else tensor)

    def _load_grown(
        self, kind: Weights, model: nn.Module, parameters: frozenset[str], seed: int
    ) -> dict[str, Tensor]:
        """Load grown weights with which the model's outputs stay finite; return the state dict.

        If no grown weights do, SHAKEN ones are loaded.
        """
        inputs, roles = self.description.own_sample(seed), self.description.roles
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

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output, the fp64 output and its spread for one slot of inputs.

        The spread is zero if the message gives no seconds for measuring it.
        """
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        declared, precise, spread = (
            self.arenas[message[name]].tensors(message["target"])
            for name in ("declared", "precise", "spread")
        )
        reference = self.reference
        run, self.declared_run = self.declared_run, None
        run = run or _stored_outputs(reference.traced(inputs), declared)
        start = time.perf_counter()
        exact = self._stored_fp64(inputs, precise)
        call_s = time.perf_counter() - start
        finite = run.defined and exact.defined and reference.within_range(inputs, declared)
        fills_hidden = reference.answer_hides_fills(inputs, precise)
        # Without consistent slices the draw decides nothing, like one that shows a mask fill.
        chosen_by = reference.generator(message["seed"])
        fills_hidden &= is_consistent(reference, inputs, declared, precise, chosen_by)
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
        if self.description.facts.large:
            count = message["count"] or MIN_PERTURBATIONS
        self.spread.measure(inputs, precise, spread, count, generator)
        if reference.discrete:
            terms = self.description.facts.terms
            nearby = NearTies(terms.longest, self.task.precision, message["opposites"], terms.unit)
            perturbed_inputs = nearby.perturbed(reference.widened(inputs), generator, exact)
            runs = (reference.forward_fp64(inputs) for inputs in perturbed_inputs)
            places = nearby.find(exact, run, runs, spread)
            write_places(places, self.arenas[message["places"]].tensors(message["target"]))
        certain = message["check_decisions"] and self._is_certain(inputs)
        return {
            "finite": finite,
            "fills_hidden": fills_hidden,
            "perturbations": count,
            "certain": certain,
        }

    def _is_certain(self, inputs: list[Tensor]) -> bool:
        """Return True if roundoff decides no comparison or choice (`Expected.certain`)."""
        if self.reference.decided_equally(inputs, kinks=True):
            return True
        # In the reference's own arithmetic exact draws admit no jump anyway (`bounds.may_jump`).
        is_coarse = self.reference.task.precision not in OWN_ARITHMETIC
        return is_coarse and self.reference.keeps_first(inputs)

    def _stored_fp64(self, inputs: list[Tensor], target: list[Tensor]) -> ReferenceTrace:
        """Run the reference in fp64, in slices if it has any, and write the outputs to `target`."""
        if self.reference.slicing is None:
            return _stored_outputs(self.reference.forward_fp64(inputs), target)
        defined = self.reference.write_fp64(inputs, target)
        return ReferenceTrace(target, [], [None] * len(target), defined=defined)

    def sensitivity(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the sensitivity of the answer to one slot of inputs to the arenas "moved" and
        "tied".
        """
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
            declared_on=reference.forward,
        )
        pairs = message["pairs"]
        moved, tied = (self.arenas[message[name]].tensors() for name in ("moved", "tied"))
        step = sequential(self.description.facts.terms.longest)
        moves = reach(self.description.facts.terms.signed, self.description.coarsest)
        fixed_order = bool(tied) and reference.keeps_first(inputs)
        for view in tied if fixed_order else ():
            view.zero_()
        if (slicing := reference.slicing) is not None:
            sliced_answers.measure_change(slicing, perturbed, moves, step, pairs, moved)
            if tied and not fixed_order:
                sliced_answers.measure_tie_change(slicing, perturbed, step, pairs, tied)
            carried = sliced_answers.carried(slicing, perturbed, pairs)
        else:
            sensitivity.measure_change(perturbed, moves, step, pairs, moved)
            if tied and not fixed_order:
                sensitivity.measure_tie_change(perturbed, step, pairs, tied)
            carried = sensitivity.carried(perturbed, pairs)
        return {
            "carried": carried,
            "undecided": reference.decided_equally(inputs) is False,
            "roundoff_chooses": bool(tied) and reference.roundoff_chooses(inputs),
        }

    def reorder(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared outputs under another order of equal elements to the arena
        "reordered".
        """
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        if self.reference.keeps_first(inputs):
            return {"ran": False}
        order = ordered(ORDERS[message["order"]])
        if (slicing := self.reference.slicing) is not None:
            return {"ran": self._reorder_slices(slicing, message, inputs)}
        results = sensitivity.run_or_none(lambda: self.reference.forward(inputs), order)
        if results is not None:
            _copy(results, self.arenas[message["reordered"]].tensors())
        return {"ran": results is not None}

    def _reorder_slices(
        self, slicing: Slicing, message: dict[str, Any], inputs: list[Tensor]
    ) -> bool:
        """Write the outputs of `reorder` slice by slice; return False if a run fails."""
        order = ORDERS[message["order"]]

        def run(part: list[Tensor]) -> list[Tensor]:
            with ordered(order):
                return self.reference.forward(part)

        try:
            slicing.run(run, inputs, self.arenas[message["reordered"]].tensors())
        except FAILURES:
            return False
        return True


def _copy(results: list[Tensor], target: list[Tensor]) -> None:
    if [x.shape for x in results] != [x.shape for x in target]:
        raise TaskError("the reference's output changes its shape from call to call")
    for view, tensor in zip(target, results, strict=True):
        view.copy_(tensor)


def _stored_outputs(run: ReferenceTrace, target: list[Tensor]) -> ReferenceTrace:
    """Copy the run's outputs to `target`; return the run with `target` as its outputs."""
    _copy(run.outputs, target)
    return replace(run, outputs=target)
