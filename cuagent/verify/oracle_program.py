"""What runs in the oracle's process: the user's reference, in its own precision and in fp64.

Trusted: it runs the user's module and nothing of a candidate's, so it answers in JSON. What it
computes goes into arenas that no worker is lent. Errors of the user's module go back as text.
"""

from __future__ import annotations

import copy
import json
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.sandbox import harden
from cuagent.task import (
    Device,
    Precision,
    Reference,
    TaskError,
    TreeError,
    check_runs,
    flatten,
    open_reference,
    unflatten,
)
from cuagent.task.memory import large, shortage
from cuagent.verify import doubts, marks
from cuagent.verify.bounds import coarsest, reach, sequential
from cuagent.verify.examine import examine
from cuagent.verify.hidden import hidden
from cuagent.verify.inputs import SWEEPS, TURNS, Inputs, Range, Weights, ranges_of, shake
from cuagent.verify.orders import ORDERS, ordered
from cuagent.verify.perturb import in_blocks, perturbed, real, widened, within
from cuagent.verify.places import NearTies, find_places, tell_places
from cuagent.verify.reductions import terms
from cuagent.verify.repertoire import Repertoire, repertoire
from cuagent.verify.selections import Followed, follow
from cuagent.worker.arena import Arena, layout_of, settle
from cuagent.worker.arms import set_precision, task_from_json
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.heap import give_back, keep_memory

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from cuagent.verify.ties import Places

MOST_PERTURBATIONS, FEWEST_PERTURBATIONS = 8, 2
PERTURBED_BYTES = 1 << 28
"""Of perturbed weights that are kept."""
RANGE_DRAWS = 8
"""Own draws in which the range of integer inputs is looked for."""


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
    """The reference in two precisions, with the weights last asked for."""

    def __init__(self, folder: Path) -> None:
        import torch

        task = task_from_json(json.loads((folder / "task.json").read_text()))
        if task.device is Device.CPU:
            harden()
        # The oracle is as exact as the task's dtypes allow, whatever a candidate is admitted.
        set_precision(Precision.MATCH)
        torch.set_grad_enabled(False)
        self.reference: Reference = open_reference(task)
        self.arenas: dict[int, Arena] = {}
        self.declared: nn.Module = self.reference.model(0)
        self.precise = self.declared
        """The same in fp64, where it runs in that."""
        self.fp64 = self.discrete = self.marked = False
        self.perturbed_weights: list[dict[str, Tensor]] = []
        """The weights perturbed, once for each perturbation."""
        self.weights_seed = 0
        self.large, self.copies = False, True
        """Whether the task's tensors take much of the device; whether each run gets copies."""
        self.inputs: dict[str, Any] = {}
        self.swept: tuple[int, list[Tensor]] | None = None
        """Own inputs that the draws of the last sweep have in common, and the seed they are of."""
        self.repertoire = Repertoire((), (), (), {})

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Do what the referee asks; `descriptors` are of an arena that it lends."""
        match message["do"]:
            case "describe":
                return self.describe()
            case "examine":
                found = examine(self.declared, self._as_they_are, self._own)
                return {**found, **hidden(self.reference, found)}
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self.arenas.pop(message["arena"]).close()
            case "weights":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.weigh(Weights(message["kind"]), message["seed"], target)
            case "draw":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.draw(Inputs(message["kind"]), message["seed"], target)
            case "answer":
                return self.answer(message)
            case "doubt":
                return self.doubt(message)
            case "reorder":
                return self.reorder(message)
        return {}

    def settle(self) -> None:
        """The device is at rest, and memory that a large task needs elsewhere is given back."""
        device = self.reference.task.device.value
        settle(device)
        if self.large:
            give_back() if device == "cpu" else _empty_cache()

    def describe(self) -> dict[str, Any]:
        """Forms of everything, the longest sum, the kinds of inputs the reference is finite on.

        Raises TaskError where the reference does not run.
        """
        check_runs(self.reference)
        arguments = self.reference.inputs(0)
        leaves, self.inputs = flatten(arguments, "inputs")
        peak = self._peak()
        before = [x.clone() for x in leaves]
        outputs: list[Any] = []
        self.terms = terms(lambda: outputs.append(self.declared(*arguments)))
        results, spec = flatten(outputs.pop(), "output")
        self._weigh_up(before, leaves, results)
        peak = max(peak, self._peak() - sum(x.nbytes for x in before))
        del before
        init = self._init_form()
        self.coarsest = coarsest(results, self.reference.task.precision)
        self.fp64 = self._fp64_works(leaves, results)
        self._make_precise()
        self.discrete = not all(real(result) for result in results)
        followed = follow(lambda: self._forward(self.declared, leaves))
        chooses = any(chosen.indexed for chosen in followed.selections)
        places = find_places(followed, followed, ())
        self.marked = marks.find(lambda: self._exactly(self._wide(leaves)).outputs, self.precise)
        call_s = self._seconds(leaves)
        self.repertoire = repertoire(
            leaves,
            self._ranges(leaves),
            followed,
            lambda inputs: self._forward(self.declared, inputs),
            lambda inputs: self._exactly(self._wide(inputs)).outputs,
            discrete=self.discrete,
            call_s=call_s,
            meant=self._meant if self.marked else None,
        )
        harden()  # on CUDA not before it has named its threads through /proc/self
        return {
            "inputs": self.inputs,
            "output": spec,
            "init": init,
            "traced": [number for number, traced in enumerate(followed.traced) if traced],
            "terms": astuple(self.terms),
            "peak": peak,
            "fp64": self.fp64,
            "call_s": call_s,
            "large": self.large,
            "kinds": self.repertoire.kinds,
            "turns": {kind: astuple(n) for kind, n in self.repertoire.turns.items()},
        } | self._layouts(leaves, results, places, results if chooses else [])

    def _weigh_up(self, before: list[Tensor], inputs: list[Tensor], results: list[Tensor]) -> None:
        """How much memory the task's tensors take, and whether the reference writes to them."""
        import torch

        size = sum(x.nbytes for x in (*inputs, *results))
        self.large = large(size, self.reference.task.device.value)
        # NaN is unlike itself and counts as written, which costs copies only.
        writes = not all(map(torch.equal, before, inputs))
        self.copies = writes or not self.large

    def _init_form(self) -> Any:
        """How the constructor's arguments are nested. Raises TaskError where one is a tensor."""
        positional, named = self.reference.init_args
        tensors, spec = flatten([list(positional), named])
        if tensors:
            raise TaskError(f"{self.reference.task.path}: get_init_inputs() holds a tensor")
        return spec

    def _layouts(
        self,
        inputs: list[Tensor],
        results: list[Tensor],
        places: Sequence[Places],
        tied: list[Tensor],
    ) -> dict[str, Any]:
        """What memory the referee is to lend for everything, and the names of the weights."""
        state = self.declared.state_dict()
        chosen = [tensor for each in places for tensor in each.tensors]
        return {
            "state": list(state),
            "state_layout": layout_of(list(state.values()), dense=True).to_json(),
            "inputs_layout": layout_of(inputs).to_json(),
            "output_layout": layout_of(results, dense=True).to_json(),
            "precise_layout": layout_of(results, dense=True, wide=True).to_json(),
            "places_layout": layout_of(chosen, dense=True).to_json(),
            "tied_layout": layout_of(tied, dense=True, wide=True).to_json(),
            "reordered_layout": layout_of(tied, dense=True).to_json(),
        }

    def _peak(self) -> int:
        """Bytes of the GPU's memory that the reference has needed so far."""
        import torch

        on_gpu = self.reference.task.device is Device.CUDA
        return torch.cuda.max_memory_allocated() if on_gpu else 0

    def _seconds(self, inputs: list[Tensor]) -> float:
        """About how long a call of the reference takes."""
        device = self.reference.task.device.value
        settle(device)
        begun = time.perf_counter()
        self._forward(self.declared, inputs)
        settle(device)
        return time.perf_counter() - begun

    def _own(self, seed: int) -> list[Tensor]:
        return flatten(self.reference.inputs(seed), "inputs")[0]

    def _as_they_are(self, inputs: list[Tensor]) -> list[Tensor]:
        return flatten(self.declared(*unflatten(inputs, self.inputs)), "output")[0]

    def weigh(self, kind: Weights, seed: int, target: list[Tensor]) -> None:
        """Construct a model from `seed`, move its weights to `kind`, write its state dict."""
        model = self.reference.model(seed)
        parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        state = shake(kind, model.state_dict(), parameters, seed)
        model.load_state_dict(state)
        self.declared = model
        self.weights_seed = seed
        self._make_precise()
        for view, tensor in zip(target, state.values(), strict=True):
            view.copy_(tensor)

    def draw(self, kind: Inputs, seed: int, target: list[Tensor]) -> None:
        base = self._base(kind, seed, target)
        for view, tensor in zip(target, self.repertoire.drawn(kind, base, seed), strict=True):
            view.copy_(tensor)

    def _base(self, kind: Inputs, seed: int, target: list[Tensor]) -> list[Tensor]:
        """What a draw of `kind` is derived from: one of the task's own, which takes its time.

        Where nothing but its forms would be left of it, those of `target` do; draws of a sweep,
        which go through all values of one kind, have the others in common.
        """
        if kind is not Inputs.OWN and all(tensor.is_floating_point() for tensor in target):
            return target
        if kind in SWEEPS:
            seed //= TURNS
            if self.swept is not None and self.swept[0] == seed:
                return self.swept[1]
        own, spec = flatten(self.reference.inputs(seed), "inputs")
        if spec != self.inputs or [x.shape for x in own] != [x.shape for x in target]:
            path = self.reference.task.path
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
        run = self._told(self._followed(self.declared, inputs), declared)
        begun = time.perf_counter()
        exact = self._told(self._exactly(self._wide(inputs)), precise)
        each = time.perf_counter() - begun
        finite = all(_finite(x) for x in declared if real(x))
        meant = self._means(inputs, precise)
        if message["seconds"] is None:
            for view in spread:
                view.zero_()
            return {"finite": finite, "meant": meant, "perturbations": 0}
        count = message["count"] or int(message["seconds"] / max(each, 1e-6))
        count = min(MOST_PERTURBATIONS, max(FEWEST_PERTURBATIONS, count))
        generator = self._generator(message["seed"])
        self._perturb(inputs, precise, spread, count, generator)
        if self.discrete:
            near = NearTies(self.terms.longest, self.reference.task.precision, message["opposites"])
            perturbed_inputs = near.perturbed(self._wide(inputs), generator, exact)
            runs = (self._exactly(inputs) for inputs in perturbed_inputs)
            places = near.settle(exact, run, runs, spread)
            tell_places(places, self.arenas[message["places"]].tensors(message["target"]))
        return {"finite": finite, "meant": meant, "perturbations": count}

    def _perturb(
        self,
        inputs: list[Tensor],
        exact: list[Tensor],
        spread: list[Tensor],
        count: int,
        generator: Generator,
    ) -> None:
        """Spread per element: rms over `count` perturbations of every input and weight."""
        model = self.precise
        given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moving = [index for index, base in enumerate(exact) if real(base)]
        for index in moving:
            spread[index].zero_()
        try:
            for number in range(count):
                weights = self._weights(number, given)
                for name, tensor in model.state_dict().items():
                    tensor.copy_(weights[name])
                near = [perturbed(tensor, generator, wide=self.fp64) for tensor in inputs]
                results = self._attempted(model, near)
                results = results or self._attempted(model, within(near, inputs)) or exact
                del near
                for index in moving:
                    for total, *both in in_blocks(spread[index], results[index], exact[index]):
                        total += both[0].sub(both[1]).square_()
                del results
        finally:
            for name, tensor in model.state_dict().items():
                tensor.copy_(given[name])
        for index in moving:
            for (total,) in in_blocks(spread[index]):
                total.div_(count).sqrt_()

    def _attempted(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor] | None:
        """None where it fails: the reference may not be made for what is a little off."""
        return doubts.attempted(lambda: self._forward(model, inputs), self._default_dtype())

    def _weights(self, number: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of one perturbation; where they fit, kept: noise takes its time.

        They are the same for all draws, in whatever order these come.
        """
        if number < len(self.perturbed_weights):
            return self.perturbed_weights[number]
        generator = self._generator(self.weights_seed + number)
        near = {name: perturbed(tensor, generator) for name, tensor in weights.items()}
        size = sum(tensor.nbytes for tensor in near.values())
        if size * (number + 1) <= PERTURBED_BYTES:
            self.perturbed_weights.append(near)
        return near

    def _followed(self, model: nn.Module, inputs: list[Tensor]) -> Followed:
        """A run of which, where outputs are integers, their origin is known."""
        if self.discrete:
            return follow(lambda: self._forward(model, inputs))
        outputs = self._forward(model, inputs)
        return Followed(outputs, [], [None] * len(outputs))

    def _exactly(self, wide: list[Tensor]) -> Followed:
        """In fp64, where the module runs in it."""
        with self._default_dtype():
            return self._followed(self.precise, wide)

    def doubt(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write how far each element of the answer moves within honest roundoff."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        reference = doubts.Reference(
            run=lambda near: self._exactly(self._wide(near)).outputs,
            inputs=inputs,
            state=self.precise.state_dict(),
            generator=self._generator(message["seed"]),
            declared=lambda: self._forward(self.declared, inputs),
            answer=self.arenas[message["precise"]].tensors(message["target"]),
            wide=self.fp64,
        )
        pairs = message["pairs"]
        moved, tied = (self.arenas[message[name]].tensors() for name in ("moved", "tied"))
        step = sequential(self.terms.longest)
        doubts.move(reference, reach(self.terms.signed, self.coarsest), step, pairs, moved)
        if tied:
            doubts.choose(reference, step, pairs, tied)
        return {"carried": doubts.carried(reference, pairs)}

    def reorder(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output where equals are chosen otherwise."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        order = ordered(ORDERS[message["order"]])
        results = doubts.attempted(lambda: self._forward(self.declared, inputs), order)
        if results is not None:
            self._copy(results, self.arenas[message["reordered"]].tensors())
        return {"ran": results is not None}

    def _meant(self, inputs: list[Tensor]) -> bool:
        """Whether the reference means its answer to these inputs."""
        wide = self._wide(inputs)
        return self._means(wide, self._exactly(wide).outputs)

    def _means(self, inputs: list[Tensor], exact: list[Tensor]) -> bool:
        """Whether the answer is the same where the reference's marks stand further out."""
        if not self.marked:
            return True
        with marks.further(self.precise):
            moved = self._exactly(self._wide(inputs)).outputs
        return marks.alike([x.to(y.dtype) for x, y in zip(moved, exact, strict=True)], exact)

    def _generator(self, seed: int) -> Generator:
        import torch

        return torch.Generator(device=self.reference.task.device.value).manual_seed(seed)

    def _forward(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        """Raises TaskError where inputs that were lent for want of memory are written to."""
        # Cloned, so that a reference that writes to its inputs does not change what is judged.
        given = [x.clone() for x in inputs] if self.copies else inputs
        versions = [x._version for x in given]
        results = flatten(model(*unflatten(given, self.inputs)), "output")[0]
        if not self.copies and versions != [x._version for x in given]:
            raise TaskError(
                f"{self.reference.task.path}: forward writes to its inputs on some draws only"
            )
        return results

    def _make_precise(self) -> None:
        self.perturbed_weights = []
        self.precise = copy.deepcopy(self.declared).double() if self.fp64 else self.declared

    def _fp64_works(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        import torch

        self.fp64 = True
        self._make_precise()
        try:
            exact = self._exactly(self._wide(inputs)).outputs
        except (RuntimeError, TypeError, ValueError):
            return False  # a module that fixes its dtype inside; the declared one must do
        wide = (torch.float64, torch.complex128)
        return all(not real(r) or x.dtype in wide for x, r in zip(exact, results, strict=True))

    def _ranges(self, leaves: list[Tensor]) -> list[Range | None]:
        if all(real(tensor) for tensor in leaves):
            return [None] * len(leaves)
        seeds = range(RANGE_DRAWS)
        return ranges_of([self._own(seed) for seed in seeds])

    def _wide(self, inputs: list[Tensor]) -> list[Tensor]:
        return [widened(tensor) for tensor in inputs] if self.fp64 else inputs

    @contextmanager
    def _default_dtype(self) -> Iterator[None]:
        """fp64 for what the module creates itself."""
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self.fp64 else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def _told(self, run: Followed, target: list[Tensor]) -> Followed:
        """The run, its outputs in an arena and nowhere else."""
        self._copy(run.outputs, target)
        return replace(run, outputs=target)

    @staticmethod
    def _copy(results: list[Tensor], target: list[Tensor]) -> None:
        if [x.shape for x in results] != [x.shape for x in target]:
            raise TaskError("the reference's output changes its shape from call to call")
        for view, tensor in zip(target, results, strict=True):
            view.copy_(tensor)


def _empty_cache() -> None:
    import torch

    torch.cuda.empty_cache()


def _finite(tensor: Tensor) -> bool:
    """By the sum first, which no NaN or Inf leaves: a sixteenth of the time."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
