"""What runs in the oracle's process: the user's reference, in its own precision and in fp64.

Trusted: it runs the user's module and nothing of a candidate's, so it answers in JSON. What it
computes goes into arenas that no worker is lent. Errors of the user's module go back as text.
"""

from __future__ import annotations

import copy
import json
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from cuagent.task.memory import shortage
from cuagent.verify import doubts
from cuagent.verify.bounds import COARSE_GATE, MOST_SEQUENTIAL, UNIT, UNITS, reach
from cuagent.verify.examine import examine
from cuagent.verify.inputs import Inputs, Range, Weights, boolean, derive, ranges_of, shake
from cuagent.verify.perturb import apart, opposites, pairs, perturbed, real, tilted, untied
from cuagent.verify.places import find_places, tell_places
from cuagent.verify.reductions import longest_sum
from cuagent.verify.selections import Followed, follow
from cuagent.verify.ties import Places
from cuagent.worker.arena import Arena, layout_of, settle
from cuagent.worker.arms import set_precision, task_from_json
from cuagent.worker.channel import receive_message, send_message

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_PERTURBATIONS, FEWEST_PERTURBATIONS = 8, 2
MOVED_BYTES = 1 << 28
"""Of perturbed weights that are kept."""
RANGE_DRAWS = 8
"""Own draws in which the range of integer inputs is looked for."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Answer until the referee hangs up."""
    program: _Oracle | None = None
    while (received := receive_message(channel)) is not None:
        message, descriptors = received
        try:
            if program is None:
                program = _Oracle(folder)
            answer = program.obey(message, descriptors)
            settle(program.reference.task.device.value)
        except (TaskError, TreeError) as error:
            answer = {"error": str(error)}
        # The process boundary: the user's module failed.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            text = " ".join(str(error).split())[:300]
            answer = {"error": f"the reference fails: {type(error).__name__}: {text}"}
            if short := shortage(error):
                answer = {"memory": f"the reference {short}"}
        send_message(channel, answer)


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
        self.precise: nn.Module | None = None
        self.moved: list[dict[str, Tensor]] = []
        """The weights perturbed, once for each perturbation."""
        self.inputs: dict[str, Any] = {}
        self.ranges: list[Range | None] = []

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        match message["do"]:
            case "describe":
                return self.describe()
            case "examine":
                return examine(self.declared, self._as_they_are, self._own)
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self.arenas.pop(message["arena"]).close()
            case "weights":
                target = self.arenas[message["arena"]].tensors()
                self.weigh(Weights(message["kind"]), message["seed"], target)
            case "draw":
                target = self.arenas[message["arena"]].tensors(message["slot"])
                self.draw(Inputs(message["kind"]), message["seed"], target)
            case "answer":
                return self.answer(message)
            case "doubt":
                self.doubt(message)
        return {}

    def describe(self) -> dict[str, Any]:
        """Forms of everything, the longest sum, the kinds of inputs the reference is finite on."""
        check_runs(self.reference)
        arguments = self.reference.inputs(0)
        leaves, self.inputs = flatten(arguments, "inputs")
        outputs: list[Any] = []
        longest = longest_sum(lambda: outputs.append(self.declared(*arguments)))
        self.longest = longest
        peak = self._peak()
        results, spec = flatten(outputs[0], "output")
        init, init_spec = flatten([list(self.reference.init_args[0]), self.reference.init_args[1]])
        if init:
            raise TaskError(f"{self.reference.task.path}: get_init_inputs() holds a tensor")
        state = self.declared.state_dict()
        self._make_precise()
        self.fp64 = self._fp64_works(leaves, results)
        self.ranges = self._ranges(leaves)
        self.discrete = not all(real(result) for result in results)
        followed = self._followed(self.declared, leaves)
        places = find_places(followed, followed, ())
        harden()  # on CUDA not before it has named its threads through /proc/self
        return {
            "inputs": self.inputs,
            "inputs_layout": layout_of(leaves).to_json(),
            "output": spec,
            "output_layout": layout_of(results, dense=True).to_json(),
            "precise_layout": layout_of(results, dense=True, wide=True).to_json(),
            "places_layout": layout_of(
                [t for p in places for t in p.tensors], dense=True
            ).to_json(),
            "traced": [number for number, traced in enumerate(followed.traced) if traced],
            "init": init_spec,
            "state": list(state),
            "state_layout": layout_of(list(state.values()), dense=True).to_json(),
            "longest_sum": longest,
            "peak": peak,
            "fp64": self.fp64,
            "call_s": self._seconds(leaves),
            "kinds": [kind for kind in Inputs if self._usable(kind, leaves)],
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
        self._make_precise()
        for view, tensor in zip(target, state.values(), strict=True):
            view.copy_(tensor)

    def draw(self, kind: Inputs, seed: int, target: list[Tensor]) -> None:
        own, spec = flatten(self.reference.inputs(seed), "inputs")
        if spec != self.inputs or [x.shape for x in own] != [x.shape for x in target]:
            path = self.reference.task.path
            raise TaskError(f"{path}: get_inputs() gives other shapes or scalars at every call")
        for view, tensor in zip(target, derive(kind, own, seed, self.ranges), strict=True):
            view.copy_(tensor)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the declared output, the fp64 output and its spread for one slot of inputs."""
        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        declared, precise, spread = (
            self.arenas[message[name]].tensors() for name in ("declared", "precise", "spread")
        )
        self._copy(self._forward(self.declared, inputs), declared)
        begun = time.perf_counter()
        exact = self._exact(inputs)
        self._copy(exact, precise)
        each = time.perf_counter() - begun
        count = message["count"] or int(message["seconds"] / max(each, 1e-6))
        count = min(MOST_PERTURBATIONS, max(FEWEST_PERTURBATIONS, count))
        self._perturb(inputs, exact, spread, count, message["seed"])
        if self.discrete:
            places = self._settle_ties(inputs, exact, spread, message["opposites"], message["seed"])
            tell_places(places, self.arenas[message["places"]].tensors())
        finite = all(
            bool(x.isfinite().all()) for x in declared if x.is_floating_point() or x.is_complex()
        )
        return {"finite": finite, "perturbations": count}

    def _perturb(
        self, inputs: list[Tensor], exact: list[Tensor], spread: list[Tensor], count: int, seed: int
    ) -> None:
        """Spread per element: rms over `count` perturbations of every input and weight."""
        import torch

        generator = self._generator(seed)
        model = self.precise if self.fp64 else self.declared
        assert model is not None
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        totals = [torch.zeros_like(pairs(view)) for view in spread]
        for number in range(count):
            weights = self._moved_weights(number, kept, generator)
            for name, tensor in model.state_dict().items():
                tensor.copy_(weights[name])
            moved = [perturbed(self._widened(tensor), generator) for tensor in inputs]
            with self._default_dtype():
                results = self._forward(model, moved)
            for total, result, base in zip(totals, results, exact, strict=True):
                if real(base):
                    total += pairs(result - base).square()
        for name, tensor in model.state_dict().items():
            tensor.copy_(kept[name])
        for view, total in zip(spread, totals, strict=True):
            if real(view):
                pairs(view).copy_((total / count).sqrt())

    def _moved_weights(
        self, number: int, weights: dict[str, Tensor], generator: Any
    ) -> dict[str, Tensor]:
        """Of one perturbation; where they fit, the same for all draws: noise takes its time."""
        if number < len(self.moved):
            return self.moved[number]
        moved = {name: perturbed(tensor, generator) for name, tensor in weights.items()}
        size = sum(tensor.nbytes for tensor in moved.values())
        if size * (number + 1) <= MOVED_BYTES:
            self.moved.append(moved)
        return moved

    def _settle_ties(
        self,
        inputs: list[Tensor],
        exact: list[Tensor],
        spread: list[Tensor],
        count: int,
        seed: int,
    ) -> list[Places]:
        """What the integers of the output that hang on a near-tie may be as well.

        For indices that can be followed, what they were chosen from. For others, in `spread`, how
        far they move: each perturbation comes with its opposite, and so do ramps, so that a tie
        falls one way and the other; all as large as what honest sums may err, since an honest
        kernel breaks ties by its own roundoff.
        """
        import torch

        model = self.precise if self.fp64 else self.declared
        far = reach(self.longest, UNIT)
        for view in spread:
            if not real(view):
                view.zero_()

        def moved() -> Iterator[Followed]:
            for wide in self._moved_inputs(inputs, far, count, seed):
                run = self._followed(model, wide)
                for view, result, base in zip(spread, run.outputs, exact, strict=True):
                    if not real(base):
                        view.copy_(torch.maximum(view.long(), apart(result, base)))
                yield run

        unit = UNITS[self.reference.task.precision]
        coarse = 0.0 if unit == UNIT else COARSE_GATE * unit / far
        return find_places(
            self._followed(model, [self._widened(tensor) for tensor in inputs]),
            self._followed(self.declared, inputs),
            moved(),
            1 + coarse,
            min(UNIT * math.sqrt(self.longest), MOST_SEQUENTIAL),
        )

    def _moved_inputs(
        self, inputs: list[Tensor], far: float, count: int, seed: int
    ) -> Iterator[list[Tensor]]:
        generator = self._generator(seed)
        wide = [untied(self._widened(tensor)) for tensor in inputs]
        for _ in range(count):
            yield from opposites(wide, generator, far)
        for sign in (1, -1):
            yield [tilted(tensor, sign * far) for tensor in wide]

    def _followed(self, model: nn.Module | None, inputs: list[Tensor]) -> Followed:
        assert model is not None
        wide = model is not self.declared
        with self._default_dtype() if wide else nullcontext():
            return follow(lambda: self._forward(model, inputs))

    def doubt(self, message: dict[str, Any]) -> None:
        """Write how far each element of the answer moves within honest roundoff."""
        model = self.precise if self.fp64 else self.declared
        assert model is not None

        def run(tensors: list[Tensor]) -> list[Tensor]:
            with self._default_dtype():
                return self._forward(model, tensors)

        inputs = self.arenas[message["inputs"]].tensors(message["slot"])
        doubts.move(
            run,
            [self._widened(tensor) for tensor in inputs],
            model.state_dict(),
            reach(self.longest, UNITS[self.reference.task.precision]),
            self._generator(message["seed"]),
            self.arenas[message["moved"]].tensors(),
        )

    def _generator(self, seed: int) -> Any:
        import torch

        return torch.Generator(device=self.reference.task.device.value).manual_seed(seed)

    def _exact(self, inputs: list[Tensor]) -> list[Tensor]:
        if not self.fp64 or self.precise is None:
            return self._forward(self.declared, inputs)
        with self._default_dtype():
            return self._forward(self.precise, [self._widened(tensor) for tensor in inputs])

    def _forward(self, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
        # Cloned, so that a reference that writes to its inputs does not change what is judged.
        return flatten(model(*unflatten([x.clone() for x in inputs], self.inputs)), "output")[0]

    def _make_precise(self) -> None:
        self.moved = []
        self.precise = copy.deepcopy(self.declared).double()

    def _fp64_works(self, inputs: list[Tensor], results: list[Tensor]) -> bool:
        import torch

        self.fp64 = True
        try:
            exact = self._exact(inputs)
        except (RuntimeError, TypeError, ValueError):
            return False  # a module that fixes its dtype inside; the declared one must do
        wide = (torch.float64, torch.complex128)
        return all(not real(r) or x.dtype in wide for x, r in zip(exact, results, strict=True))

    def _usable(self, kind: Inputs, own: list[Tensor]) -> bool:
        if kind is Inputs.OWN:
            return True
        if kind is Inputs.EXTREMES:
            if not any(self.ranges):
                return False
        elif kind in (Inputs.MASKS, Inputs.EMPTY):
            if not any(boolean(tensor) for tensor in own):
                return False
        elif not any(tensor.is_floating_point() for tensor in own):
            return False
        if kind is Inputs.TIES and not self.discrete:
            return False
        try:
            results = self._forward(self.declared, derive(kind, own, 0, self.ranges))
        except (RuntimeError, ValueError, IndexError):
            return False  # outside what the reference accepts (probabilities, say)
        return all(bool(tensor.isfinite().all()) for tensor in results)

    def _ranges(self, leaves: list[Tensor]) -> list[Range | None]:
        if all(real(tensor) for tensor in leaves):
            return [None] * len(leaves)
        seeds = range(RANGE_DRAWS)
        return ranges_of([self._own(seed) for seed in seeds])

    def _widened(self, tensor: Tensor) -> Tensor:
        import torch

        if not self.fp64 or not real(tensor):
            return tensor
        return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)

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

    @staticmethod
    def _copy(results: list[Tensor], target: list[Tensor]) -> None:
        if [x.shape for x in results] != [x.shape for x in target]:
            raise TaskError("the reference's output changes its shape from call to call")
        for view, tensor in zip(target, results, strict=True):
            view.copy_(tensor)
