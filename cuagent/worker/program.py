"""What runs in a worker: it obeys commands, runs forward, and answers with records.

It shares its process with untrusted code, so nothing here can be relied on: it is a convenience for
the candidate, which may break it, and then its output is wrong or its record is missing. Checks
made here (form, guards around what the candidate allocates) find mistakes, not lies.

Commands: open, attach, detach, load, run, nothing; each names a nonce that its record carries back.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.task import TreeError, flatten, unflatten
from cuagent.worker.arms import ModelSpec, import_arm, set_precision
from cuagent.worker.channel import Record, Status, receive_message, send_record
from cuagent.worker.folder import LIBRARIES
from cuagent.worker.jitter import Jitter, unsteady
from cuagent.worker.memory import heap
from cuagent.worker.memory.arena import Arena
from cuagent.worker.memory.uninitialized import Allocations

if TYPE_CHECKING:
    from torch import Tensor, nn


class Refusal(Exception):
    """The command failed in a way that has a status of its own."""

    def __init__(self, status: Status, line: str = ""):
        super().__init__(line)
        self.status = status


def serve(channel: socket.socket, folder: Path) -> None:
    """Obey until the referee hangs up; the device is ready before the first command comes."""
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
    """The state between commands: the model and the arenas it was lent."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.arenas: dict[int, Arena] = {}
        self.model_spec = ModelSpec.from_json(json.loads((folder / "order.json").read_text()))
        self._fills = itertools.cycle(heap.FILLS)
        self._jitter: Jitter | None = None
        self.construct: Callable[[], nn.Module]
        self.model: nn.Module

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> list[int]:
        """Do one command; nanoseconds of each call for `run`, one zero for the others."""
        match message["do"]:
            case "open":
                self.open()
            case "attach":
                self.arenas[message["arena"]] = Arena.attach(message["description"], descriptors)
            case "detach":
                self.arenas.pop(message["arena"]).close()
            case "load":
                self.load(self.arenas[message["arena"]], message["slot"], message["fresh"])
            case "run":
                return self.run(message)
            case "nothing":
                pass  # who asks wants to know that the device is ready
        return [0]

    def warm_up(self) -> None:
        """What takes long and is the same for every model: a context on the GPU."""
        import torch

        if self.model_spec.device == "cuda":
            torch.zeros(1, device="cuda")

    def open(self) -> None:
        import torch

        set_precision(self.model_spec.precision)
        if self.model_spec.device_bytes is not None:
            # So that torch says what is too much; the referee sees to those who do not ask torch.
            share = self.model_spec.device_bytes / torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
        if self.model_spec.device == "cpu" and any(self.folder.glob(f"{LIBRARIES}/*")):
            self._jitter = Jitter()
        with _user_code(Status.IMPORT_FAILED):
            self.construct = import_arm(self.model_spec, self.folder)

    def load(self, weights: Arena, slot: int, fresh: bool) -> None:
        """The weights of a slot, strictly by name and shape, in a fresh model or the one in use."""
        if fresh:
            with _user_code(Status.CONSTRUCT_FAILED):
                self.model = self.construct()
        state = dict(zip(self.model_spec.state, weights.tensors(slot), strict=True))
        with _user_code(Status.STATE_MISMATCH):
            try:
                self.model.load_state_dict(state, strict=True)
            except RuntimeError as error:
                raise RuntimeError(_mismatch(self.model, state, error)) from None

    def run(self, message: dict[str, Any]) -> list[int]:
        """Call forward on each pair of slots in turn; nanoseconds of each."""
        import torch

        sources, targets = self.arenas[message["inputs"]], self.arenas[message["outputs"]]
        inputs_of = sources.own_copy if message["own"] else sources.tensors
        watch = _watch(self.model_spec.device)
        scratch = _scratch(message["flush"], self.model_spec.device)
        allocations = Allocations(message["poison"])
        disturbed = contextlib.nullcontext() if message["poison"] is None else self._disturbed()
        with torch.no_grad(), _user_code(Status.RAISED), allocations, disturbed:
            if scratch is not None:
                torch.cuda._sleep(message["lead"])
            for source, target in message["slots"]:
                arguments = unflatten(inputs_of(source), self.model_spec.inputs)
                if scratch is not None:
                    scratch.zero_()
                watch.start()
                output = self.model(*arguments)
                watch.stop()
                if self._jitter is not None and message["poison"] is not None:
                    output = unsteady(lambda: self.model(*arguments), output)  # noqa: B023
                self._deliver(output, targets.tensors(target))
            claims = watch.nanoseconds()
        if allocations.overrun():
            raise Refusal(
                Status.WROTE_OUTSIDE, "bytes beside a tensor made with torch.empty were changed"
            )
        return claims

    @contextlib.contextmanager
    def _disturbed(self) -> Iterator[None]:
        """Memory that is not zero, and on the CPU threads that are held up (`jitter`)."""
        heap.fill(next(self._fills))
        try:
            with self._jitter.held_up() if self._jitter else contextlib.nullcontext():
                yield
        finally:
            heap.fill(0)

    def _deliver(self, output: Any, views: list[Tensor]) -> None:
        try:
            leaves, spec = flatten(output, "output")
        except TreeError as error:
            raise Refusal(Status.WRONG_FORM, str(error)) from error
        if _loose(spec) != _loose(self.model_spec.output):
            wanted = _nesting(self.model_spec.output)
            raise Refusal(
                Status.WRONG_FORM, f"forward gives {_nesting(spec)}; the reference gives {wanted}"
            )
        for index, (leaf, view) in enumerate(zip(leaves, views, strict=True)):
            if leaf.shape != view.shape or leaf.dtype != view.dtype or leaf.device != view.device:
                raise Refusal(
                    Status.WRONG_FORM,
                    f"output {index}: {_form(leaf)}; the reference gives {_form(view)}",
                )
            view.copy_(leaf)


class _CpuWatch:
    def __init__(self) -> None:
        self.claims: list[int] = []

    def start(self) -> None:
        self.begun = time.perf_counter_ns()

    def stop(self) -> None:
        self.claims.append(time.perf_counter_ns() - self.begun)

    def nanoseconds(self) -> list[int]:
        return self.claims


class _CudaWatch:
    """Events on the current stream; read once all calls are queued."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []

    def start(self) -> None:
        import torch

        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.pairs.append(pair)
        pair[0].record()

    def stop(self) -> None:
        self.pairs[-1][1].record()

    def nanoseconds(self) -> list[int]:
        import torch

        torch.cuda.synchronize()
        return [max(0, round(a.elapsed_time(b) * 1e6)) for a, b in self.pairs]


def _watch(device: str) -> _CpuWatch | _CudaWatch:
    return _CpuWatch() if device == "cpu" else _CudaWatch()


_scratches: dict[int, Any] = {}


def _scratch(size: int, device: str) -> Tensor | None:
    """Memory to overwrite before each call, so that the caches hold nothing of the last one."""
    import torch

    if not size:
        return None
    if size not in _scratches:
        _scratches[size] = torch.empty(size, dtype=torch.uint8, device=str(device))
    return _scratches[size]


@contextlib.contextmanager
def _user_code(status: Status) -> Any:
    """Any exception of the candidate becomes a status, its traceback goes to its output."""
    try:
        yield
    except Refusal:
        raise
    except BaseException as error:  # noqa: BLE001  the process boundary; SystemExit is theirs too
        frames = traceback.TracebackException.from_exception(error, limit=-6)
        print("".join(frames.format()), file=sys.stderr)
        raise Refusal(status) from None


def _loose(spec: dict[str, Any]) -> Any:
    """A spec in which lists, tuples and named tuples are one: callers unpack them alike."""
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


def _mismatch(model: nn.Module, state: Mapping[str, Tensor], error: Exception) -> str:
    """Why the reference's weights do not go in, in one line and by the candidate's names."""
    own = model.state_dict().keys()
    lacks, besides = sorted(state.keys() - own), sorted(own - state.keys())
    if not (lacks or besides):
        return " ".join(str(error).split())
    parts = [f"lacks {', '.join(lacks)}"] if lacks else []
    parts += [f"has {', '.join(besides)} besides"] if besides else []
    return f"the reference's weights must fit by name: ModelNew {' and '.join(parts)}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device.type}"


def _flush() -> None:
    """Python's and C's buffers, so that what was printed before a crash is seen."""
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
