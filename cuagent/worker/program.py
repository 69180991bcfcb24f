"""The worker's program: receive commands, call forward, and answer each command with a record.

It shares its process with untrusted code, so the referee relies on nothing that it does. A
candidate that breaks it gets a wrong output or a missing record. The checks made here (form of the
output, guards around the candidate's allocations, an unchanged state dict) find mistakes, not
cheats.

The commands are open, attach, detach, load and run. Each has a nonce, which its record returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE, GRAPH, OVERWRITING
from cuagent.task import TreeError, flatten, unflatten
from cuagent.task.random_fills import RandomFills
from cuagent.worker.arms import ModelSpec, import_arm
from cuagent.worker.channel import Record, Status, receive_message, send_record
from cuagent.worker.folder import LIBRARIES
from cuagent.worker.jitter import MAX_CALLS, MIN_CALLS, QUIET_CALLS, Jitter, RepeatedCall
from cuagent.worker.memory import heap
from cuagent.worker.memory.arena import Arena
from cuagent.worker.memory.uninitialized import Allocations
from cuagent.worker.state import changed_name, mismatch
from cuagent.worker.vector_units import note_passed, skip_tests

if TYPE_CHECKING:
    from torch import Tensor, nn


class Refusal(Exception):
    """Error that ends a command with `status`, which is sent to the referee."""

    def __init__(self, status: Status, line: str = ""):
        super().__init__(line)
        self.status = status


def serve(channel: socket.socket, folder: Path) -> None:
    """Run commands until the referee closes the channel. CUDA is started before the first
    command."""
    worker = _Worker(folder)
    worker.warm_up()
    while (received := receive_message(channel)) is not None:
        message, descriptors = received
        nonce = message["nonce"]
        try:
            claims = worker.obey(message, descriptors)
            records = [Record(nonce, call, Status.DONE, ns) for call, ns in enumerate(claims)]
        except Refusal as refusal:
            if str(refusal):
                print(refusal, file=sys.stderr)
            records = [Record(nonce, 0, refusal.status, 0)]
        _flush()
        for record in records:
            send_record(channel, record)


class _Worker:
    """State of a worker between commands: the model, and the arenas that the referee has lent."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.arenas: dict[int, Arena] = {}
        self.model_spec = ModelSpec.from_json(json.loads((folder / "order.json").read_text()))
        self._models_fills = RandomFills()
        self._fills = itertools.cycle(heap.FILLS)
        self._jitter: Jitter | None = None
        self._has_run = False
        self._loaded: dict[str, Tensor] | None = None
        """Weights that the last `load` gave to the model, until they are compared after a call."""
        self._clock: _CudaClock | None = None
        self.construct: Callable[[], nn.Module]
        self.model: nn.Module

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> list[int]:
        """Run one command. Returns the nanoseconds of each call for `run`, and [0] for other
        commands."""
        match message["do"]:
            case "open":
                self.open()
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self._loaded = None  # its tensors may be in this arena
                self.arenas.pop(message["arena"]).close()
            case "load":
                several = (
                    self._models_fills.remembered if message["several"] else contextlib.nullcontext
                )
                with several():
                    self.load(self.arenas[message["arena"]], message["slot"], message["fresh"])
            case "run":
                return self.run(message)
            case "row":
                self.run_row(message)
        return [0]

    def warm_up(self) -> None:
        """Create the CUDA context in advance; that takes long and is the same for every model."""
        import torch

        if self.model_spec.device == "cuda":
            torch.zeros(1, device="cuda")

    def open(self) -> None:
        """Apply the torch settings in the model spec, and import the model's code."""
        import torch

        if self.model_spec.settings is not None:
            self.model_spec.settings.apply()
        if self.model_spec.device_bytes is not None:
            # torch raises an error at this limit; the referee detects allocations outside torch.
            share = self.model_spec.device_bytes / torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
        if self.model_spec.device == "cpu" and any(self.folder.glob(f"{LIBRARIES}/*")):
            self._jitter = Jitter()
        if self.model_spec.device == "cuda":
            self._clock = _CudaClock.bind()
        if self.model_spec.arm == CANDIDATE:
            skip_tests()
        with _user_code(Status.IMPORT_FAILED):
            self.construct = import_arm(self.model_spec, self.folder)

    def load(self, weights: Arena, slot: int, fresh: bool) -> None:
        """Load the weights of a slot into a new model if `fresh`, else into the current one.

        Names and shapes must match exactly, as in a strict `load_state_dict`.
        """
        if fresh:
            # The heap is filled here too, so a read past the end of a weight does not find zeros.
            with _user_code(Status.CONSTRUCT_FAILED), self._filled_heap():
                self.model = self.construct()
        state = dict(zip(self.model_spec.state, weights.tensors(slot), strict=True))
        with _user_code(Status.STATE_MISMATCH):
            try:
                self.model.load_state_dict(state, strict=True)
            except RuntimeError as error:
                raise RuntimeError(mismatch(self.model, state, error)) from None
        self._loaded = state

    def run(self, message: dict[str, Any]) -> list[int]:
        """Call forward for each (input slot, output slot) in order; return the nanoseconds of each
        call."""
        import torch

        sources, targets = self.arenas[message["inputs"]], self.arenas[message["outputs"]]
        inputs_of = sources.own_copy if message["own"] else sources.tensors
        watch = _CpuWatch() if self._clock is None else _CudaWatch(self._clock)
        scratch = _scratch(message["flush"], self.model_spec.device)
        allocations = Allocations(message["poison"])
        single = message["poison"] is not None
        jitter = self._jitter if single else None
        filled = self._filled_heap() if single else contextlib.nullcontext()
        with torch.no_grad(), _user_code(Status.RAISED), allocations, filled:
            if scratch is not None:
                torch.cuda._sleep(message["lead"])
            kept: deque[tuple[Any, int]] = deque()
            for source, target in message["slots"]:
                arguments = unflatten(inputs_of(source), self.model_spec.inputs)
                if scratch is not None:
                    scratch.zero_()
                if jitter is None:
                    watch.start()
                    output = self.model(*arguments)
                    watch.stop()
                else:
                    output = self._interrupted(arguments, watch, jitter, lean=message["lean"])
                kept.append((output, target))
                # An output that a later call overwrites is wrong: its caller may still need it.
                while len(kept) > message["keep"]:
                    self._deliver(*kept.popleft(), targets)
            while kept:
                self._deliver(*kept.popleft(), targets)
            claims = watch.nanoseconds()
        if single and not message["lean"]:
            self._check_state()
        if not self._has_run and self.model_spec.arm != CANDIDATE:
            note_passed()
        self._has_run = True
        if message["lean"]:
            del output, arguments
            sources.drop_own_copies()
            heap.give_back(self.model_spec.device)
        if allocations.overrun():
            raise Refusal(Status.WROTE_OUTSIDE, "wrote outside a tensor made with torch.empty")
        return claims

    def run_row(self, message: dict[str, Any]) -> None:
        """Call forward on the same inputs again and again, without a pause between two calls.

        Results that a later call would overwrite are copied, as users must copy them.
        """
        import torch

        sources = self.arenas[message["inputs"]]
        arguments = unflatten(sources.own_copy(message["slot"]), self.model_spec.inputs)
        mode, *options = self.model_spec.arm.split("+")
        copied = mode in OVERWRITING and GRAPH not in options
        with torch.no_grad(), _user_code(Status.RAISED):
            for _ in range(message["calls"]):
                output = self.model(*arguments)
                if copied:
                    torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, output)
            if self._clock is not None:
                self._clock.synchronize()

    def _check_state(self) -> None:
        """Compare the model's state dict with the loaded weights, once after each `load`. Raises
        Refusal if a call changed it.
        """
        state, self._loaded = self._loaded, None
        spec = self.model_spec
        if state is None or (spec.kernels_only and spec.device == "cuda"):
            return  # the rule kernels-only refuses operators that compare
        with _user_code(Status.STATE_MISMATCH):
            if (name := changed_name(self.model, state)) is None:
                return
            self.model.load_state_dict(state, strict=True)
            transforms = changed_name(self.model, state) is not None
        if not transforms:  # else loading itself changes the weights
            raise Refusal(Status.CHANGED_STATE, f"a call changed {name!r} of its state dict")

    def _interrupted(
        self, arguments: list[Any], watch: _CpuWatch | _CudaWatch, jitter: Jitter, *, lean: bool
    ) -> Any:
        """Call forward while its threads are interrupted, to reveal races; return the output.

        The call is repeated with and without interruptions, and the output that differs most from
        the first is returned. If `lean`, nothing is repeated, because that takes copies of the
        output.
        """
        with jitter.interrupted():
            watch.start()
            output = self.model(*arguments)
            watch.stop()
            if lean:
                return output
            repeated = RepeatedCall(lambda: self.model(*arguments), output)
            repeated.repeat(MIN_CALLS, MAX_CALLS)
        repeated.repeat(*QUIET_CALLS)
        return repeated.output

    @contextlib.contextmanager
    def _filled_heap(self) -> Iterator[None]:
        """Let new heap memory contain a nonzero byte within the block, to reveal reads of unwritten
        memory."""
        heap.fill(next(self._fills))
        try:
            yield
        finally:
            heap.fill(0)

    def _deliver(self, output: Any, target: int, targets: Arena) -> None:
        """Copy an output to a slot of the arena `targets`. Raises Refusal if shapes or dtypes
        differ."""
        views = targets.tensors(target)
        try:
            leaves, spec = flatten(output, "output")
        except TreeError as error:
            raise Refusal(Status.WRONG_FORM, str(error)) from error
        if _loose(spec) != _loose(self.model_spec.output):
            wanted = _nesting(self.model_spec.output)
            raise Refusal(
                Status.WRONG_FORM,
                f"forward returns {_nesting(spec)}; the reference returns {wanted}",
            )
        for index, (leaf, view) in enumerate(zip(leaves, views, strict=True)):
            if leaf.shape != view.shape or leaf.dtype != view.dtype or leaf.device != view.device:
                raise Refusal(
                    Status.WRONG_FORM,
                    f"output {index}: {_form(leaf)}; the reference returns {_form(view)}",
                )
            view.copy_(leaf)


class _CpuWatch:
    def __init__(self) -> None:
        self.claims: list[int] = []

    def start(self) -> None:
        self.started = time.perf_counter_ns()

    def stop(self) -> None:
        self.claims.append(time.perf_counter_ns() - self.started)

    def nanoseconds(self) -> list[int]:
        return self.claims


@dataclass(frozen=True)
class _CudaClock:
    """torch's functions for CUDA events, stored before a candidate can replace them in
    torch.cuda."""

    event: Any
    stream: Any
    current_stream: Callable[[int], tuple[int, int, int]]
    current_device: Callable[[], int]
    synchronize: Callable[[], None]

    @staticmethod
    def bind() -> _CudaClock:
        """Look up the functions in torch's C extension, whose types Python code cannot change."""
        from torch import _C

        return _CudaClock(
            _C._CudaEventBase,
            _C._CudaStreamBase,
            _C._cuda_getCurrentStream,
            _C._cuda_getDevice,
            _C._cuda_synchronize,
        )

    def record(self) -> Any:
        """Record a timing event on the current stream and return the event."""
        number, device, kind = self.current_stream(self.current_device())
        event = self.event(enable_timing=True)
        event.record(self.stream(stream_id=number, device_index=device, device_type=kind))
        return event


class _CudaWatch:
    """Measures each call with CUDA events on the current stream; reads them after all calls are
    queued."""

    def __init__(self, clock: _CudaClock) -> None:
        self._clock = clock
        self.pairs: list[tuple[Any, Any]] = []

    def start(self) -> None:
        self.pairs.append((self._clock.record(), None))

    def stop(self) -> None:
        self.pairs[-1] = self.pairs[-1][0], self._clock.record()

    def nanoseconds(self) -> list[int]:
        self._clock.synchronize()
        return [max(0, round(a.elapsed_time(b) * 1e6)) for a, b in self.pairs]


_scratches: dict[int, Any] = {}


def _scratch(size: int, device: str) -> Tensor | None:
    """Return uint8[size], overwritten before each call to evict the last call's data from the
    caches.

    Returns None if `size` is 0.
    """
    import torch

    if not size:
        return None
    if size not in _scratches:
        _scratches[size] = torch.empty(size, dtype=torch.uint8, device=str(device))
    return _scratches[size]


@contextlib.contextmanager
def _user_code(status: Status) -> Any:
    """Raise Refusal with `status` for any exception of the candidate's code, and print its
    traceback."""
    try:
        yield
    except Refusal:
        raise
    except BaseException as error:  # noqa: BLE001  process boundary, so SystemExit is caught too
        frames = traceback.TracebackException.from_exception(error, limit=-6)
        print("".join(frames.format()), file=sys.stderr)
        raise Refusal(status) from None


def _loose(spec: dict[str, Any]) -> Any:
    """Return a form of a spec in which lists, tuples and named tuples are equal.

    A candidate may return a list in place of a tuple, because callers unpack both alike.
    """
    items = [_loose(item) for item in spec.get("items", ())]
    if spec["kind"] in ("list", "tuple", "namedtuple"):
        return ["sequence", items]
    return [spec["kind"], spec.get("keys"), items]


def _nesting(spec: dict[str, Any]) -> str:
    if spec["kind"] in ("tensor", "const"):
        return "a tensor" if spec["kind"] == "tensor" else repr(spec["value"])
    items = [_nesting(item) for item in spec["items"]]
    if spec["kind"] == "dict":
        pairs = zip(spec["keys"], items, strict=True)
        return f"{{{', '.join(f'{key!r}: {item}' for key, item in pairs)}}}"
    return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device.type}"


def _flush() -> None:
    """Flush the output buffers of Python and C, so that printed text is not lost in a crash."""
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
