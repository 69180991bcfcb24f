"""Check the candidates of one reduced task against fp64, on a CPU (`emulated_candidates`)."""

from __future__ import annotations

import copy
import hashlib
import importlib
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulation  # type: ignore[import-not-found]
import torch
from guarded_memory import Guards  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]
from interpreter import checked_accesses, exact_arithmetic  # type: ignore[import-not-found]
from modules import leaves, mapped  # type: ignore[import-not-found]
from reduced_tasks import in_dtype, reduced
from torch.utils._python_dispatch import TorchDispatchMode

from cuagent import kernels
from cuagent.expert.candidate import Candidate, Options, make_candidate
from cuagent.expert.capture.subject import Subject, Target, open_subject
from cuagent.expert.search import choices, outcomes, planner
from cuagent.expert.search.repairs import repairs
from cuagent.task import load_task

H200 = Target("cuda", (9, 0), 1, tf32=False, tf32_convolutions=True)
"""An H200 with one multiprocessor, for which the tiles of small products are those of large ones on
a whole one."""
FACTOR, LEAST = 4.0, 4e-7
"""A candidate's relative rms error may be FACTOR times that of eager, plus LEAST."""
LEAST_OF_HALF = {"bfloat16": 2e-4, "float16": 3e-5}
"""Replacement of LEAST: the error of one rounding in some of the elements."""
THRESHOLDS: dict[str, int | float] = {
    "convolutions.qualify.LEAST_OPERATIONS": 0,
    "convolutions.qualify.LEAST_OCCUPIED": 0,
    "convolutions.partials.CACHED_BYTES": 0,
    "products.qualify.LEAST_OPERATIONS": 0,
    "products.qualify.LEAST_SPLIT_OPERATIONS": 0,
    "products.qualify.LEAST_SPLIT_REUSE": 16,
    "products.qualify.LEAST_SPLIT_DEPTH": 64,
    "products.qualify.LEAST_OCCUPIED": 0,
    "products.operands.LEAST_REUSE": 48,
    "streaming.cuda_sliced.LEAST_COLUMNS": 512,
    "streaming.cuda_map.AHEAD_SIZE": 0,
}
"""Thresholds of the planner for sizes, by their place in `cuagent.expert`, and values that reduced
tasks exceed."""
OF_EVEN: dict[str, int | float] = {
    "products.halves.LEAST_IN_BLOCKS": 0,
    "streaming.cuda_kept.LEAST_COLUMNS": 512,
    "convolutions.flags.LONG": 0,
}
"""Further thresholds for even sizes; odd ones test the other path."""


class TimeLimit(BaseException):
    """A case has used its processor time. Triton's interpreter does not catch it."""


@dataclass(frozen=True)
class Case:
    """One task at one size in one configuration: a dtype, or a precision of a float32 module."""

    path: Path
    size: str
    configuration: str
    most: int = 0
    """Number of candidates, or 0 for all."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Names that identify the case in a file of records."""
        return f"{self.path.parent.name}/{self.path.stem}", self.size, self.configuration

    @property
    def target(self) -> Target:
        """The GPU for which candidates are planned, and the arithmetic that they may use."""
        return replace(H200, tf32_convolutions=self.configuration != "fp32")

    @property
    def descending(self) -> bool:
        """True if threads run in descending order, which shows other missing barriers."""
        return self.size == "odd"

    def record(self, **values: Any) -> dict[str, Any]:
        """Return an empty record of the case, for JSON."""
        names = dict(zip(("task", "size", "configuration"), self.key, strict=True))
        return {**names, "results": [], **values}


WARM_UP = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs(): return [torch.randn(2, 8)]
def get_init_inputs(): return []
"""


def warm_up() -> None:
    """Import everything and prepare the emulation, before processes are forked."""
    torch.set_num_threads(1)
    exact_arithmetic()
    checked_accesses()
    emulation.header()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm_up.py"
        path.write_text(WARM_UP, "utf-8")
        open_subject(load_task(f"{path}:Model", device="cpu"))


def checked(case: Case, record: dict[str, Any]) -> None:
    """Check each candidate of a case, and append a result for each to the record."""
    with tempfile.TemporaryDirectory() as folder, _lowered(case.size == "even"):
        subject, task, entry = _opened(case, Path(folder), record)
        if case.most != 1 or make_candidate(subject, Options()) is not None:
            reference, inputs = _reference(task, entry, case.size == "odd")
        known: set[tuple[tuple[str, str], ...]] = set()
        with _emulated(case.descending):
            for options, change in _choices(subject, case):
                if case.most and len(record["results"]) >= case.most:
                    break
                try:
                    candidate = make_candidate(subject, options)
                except Exception as error:  # noqa: BLE001 - a refusal to plan is a result
                    text = f"planning: {type(error).__name__}: {error}"
                    record["results"].append({"change": change, "wrong": text[:300]})
                    continue
                files = tuple(sorted(candidate.files.items())) if candidate else ()
                if candidate is None or files in known:
                    continue
                known.add(files)
                result = _result(case, candidate, task, reference, inputs)
                kernel_names = list(candidate.kernels)
                record["results"].append({"change": change, **result, "kernels": kernel_names})


def _opened(case: Case, folder: Path, record: dict[str, Any]) -> tuple[Subject, Path, str]:
    """Return (captured task with the GPU as target, file of the reduced task, class)."""
    text, error = case.path.read_text("utf-8"), ""
    for mild in (False, True):
        entry, small = "Model", reduced(text, case.size, mild)
        if case.configuration in LEAST_OF_HALF:
            small, entry = in_dtype(small, entry, case.configuration)
        path = folder / f"task_{mild}.py"
        path.write_text(small, "utf-8")
        try:
            subject = open_subject(load_task(f"{path}:{entry}", device="cpu"))
        except Exception as raised:  # noqa: BLE001 - sizes may contradict each other
            error = f"{type(raised).__name__}: {raised}"
            continue
        record["mild"] = mild
        return replace(subject, target=case.target), path, entry
    raise ValueError(f"the reduced task does not run: {error}")


def _reference(path: Path, entry: str, signed: bool) -> tuple[torch.nn.Module, list[Any]]:
    """Return the reference module, and the task's inputs; `signed`: with negative numbers too."""
    module = imported(path)
    torch.manual_seed(0)
    reference = getattr(module, entry)(*module.get_init_inputs()).eval()
    for tensor in [*reference.parameters(), *reference.buffers()]:
        # Equal elements (the scale 1 and the shift 0 of a norm) would hide errors.
        if tensor.is_floating_point() and tensor.numel() > 1 and len(tensor.unique()) == 1:
            tensor.data.copy_(torch.rand(tensor.shape) + 0.5)
    inputs = module.get_inputs()
    if not signed:
        return reference, inputs
    return reference, [
        (x - 0.5) * 3 if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in inputs
    ]


def _choices(subject: Subject, case: Case) -> Iterator[tuple[Options, str]]:
    """Yield (options, description) of the first candidate, then of all that the search may try
    after it, whether it was accepted, slow, or refused."""
    yield Options(), "first"
    first = make_candidate(subject, Options())
    if case.most == 1:
        return
    if first is None:
        yield Options(convolutions="channels_last"), "channels_last"
        yield Options(convolutions="every"), "every"
        return
    done = outcomes.Outcome(first, True, "")
    yield from choices.choices(subject, [done], outcomes.NO_BOUNDS, planner.NO_MEMORY)
    for reason in ("imprecise values", "exception"):
        yield from repairs(first, reason, ())


def _result(
    case: Case,
    candidate: Candidate,
    path: Path,
    reference: torch.nn.Module,
    inputs: list[Any],
) -> dict[str, Any]:
    """Return the result of a candidate of the task in `path`: the reason why it is wrong, or "",
    and its errors."""
    made = (
        path.parent / hashlib.sha256(str(sorted(candidate.files.items())).encode()).hexdigest()[:16]
    )
    for name, content in candidate.files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(content, "utf-8")
    result: dict[str, Any] = {"wrong": "", "ratio": 0.0}
    try:
        module = imported(made / "model_new.py")
        task = imported(path)
        new = module.ModelNew(*task.get_init_inputs()).eval()
        new.load_state_dict(reference.state_dict())
        _compare(case, candidate, new, reference, inputs, result)
    except Exception as error:  # noqa: BLE001 - a crash of the candidate is a result
        place = re.findall(r"line \d+, in \w+", "".join(_trace(error)))[-1:]
        result["wrong"] = f"{type(error).__name__}: {str(error)[:300]} {place}"
    return result


def _trace(error: Exception) -> list[str]:
    return traceback.format_exception(error)


def _compare(
    case: Case,
    candidate: Candidate,
    new: torch.nn.Module,
    reference: torch.nn.Module,
    inputs: list[Any],
    result: dict[str, Any],
) -> None:
    """Compare the results for some inputs; write the largest ratio of errors and the faults to
    `result`."""
    half = case.configuration in LEAST_OF_HALF
    options, target = candidate.options, case.target
    tf32 = target.tf32_convolutions and not options.exact_convolutions and not half
    exact_channels = 0 if options.tf32_few_channels else target.exact_channels

    def to_fp64(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    guards = Guards()
    given = mapped(guards.copy, inputs)
    before = mapped(torch.clone, inputs)
    state = {name: value.clone() for name, value in new.state_dict().items()}
    with torch.no_grad():
        exact = list(leaves(copy.deepcopy(reference).double()(*mapped(to_fp64, inputs))))
        with _Rounded(tf32, exact_channels):
            expected = list(leaves(reference(*inputs)))
            with guards.new_tensors():
                got = list(leaves(new(*given)))
    changed = [
        k
        for k, (a, b) in enumerate(zip(leaves(given), leaves(before), strict=True))
        if isinstance(a, torch.Tensor) and not torch.equal(a, b)
    ]
    for name, value in new.state_dict().items():
        if not torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (value, state[name]))):
            changed.append(name)
    if changed or not guards.are_intact():
        result["wrong"] = f"changed {changed}" if changed else "writes outside of a tensor"
        return
    for wanted, value, right in zip(expected, got, exact, strict=True):
        _judge(case, wanted, value, right, result)


def _judge(
    case: Case,
    wanted: torch.Tensor,
    value: torch.Tensor,
    right: torch.Tensor,
    result: dict[str, Any],
) -> None:
    kinds = [(t.shape, t.dtype, t.stride()) for t in (value, wanted)]
    if kinds[0] != kinds[1]:
        result["wrong"] = f"{kinds[0]} instead of {kinds[1]}"
        return
    if not wanted.is_floating_point():
        different = int((value != wanted).sum())
        result["wrong"] = f"{different} of {value.numel()} integers differ" if different else ""
        return
    usable = right.isfinite() & wanted.isfinite()
    if int((~value.isfinite() & usable).sum()):
        result["wrong"] = f"{int((~value.isfinite() & usable).sum())} values are not finite"
        return
    right = right[usable]
    scale = right.norm() / max(1, right.numel()) ** 0.5 + 1e-30
    errors = [(t[usable].double() - right) / scale for t in (value, wanted)]
    own, eager = (float(e.norm() / max(1, e.numel()) ** 0.5) for e in errors)
    own_most, eager_most = (float(e.abs().max()) if e.numel() else 0.0 for e in errors)
    least = LEAST_OF_HALF.get(case.configuration, LEAST)
    ratio = own / (eager + least / FACTOR)
    ratio_most = own_most / (4 * eager_most + 20 * least)
    result["ratio"] = max(result["ratio"], round(ratio, 3), round(ratio_most, 3))
    result["errors"] = [own, eager, own_most, eager_most]
    if ratio > FACTOR or ratio_most > FACTOR:
        result["wrong"] = (
            f"rms error {own:.2e} ({eager:.2e}), largest {own_most:.2e} ({eager_most:.2e})"
        )


class _Rounded(TorchDispatchMode):
    """Rounds the operands of convolutions in float32 to TF32, as cuDNN does, if they have more than
    `exact_channels` input channels in each group."""

    def __init__(self, active: bool, exact_channels: int) -> None:
        super().__init__()
        self._active, self._exact_channels = active, exact_channels

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._active and function is torch.ops.aten.convolution.default:
            channels = args[0].shape[1] // args[8]
            if args[0].dtype is torch.float32 and channels > self._exact_channels:
                args = (_tf32(args[0]), _tf32(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))


def _tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return ((bits + 4096) & -8192).view(torch.float32)


@contextmanager
def _lowered(even: bool) -> Iterator[None]:
    """Replace thresholds of the planner (`THRESHOLDS`)."""
    changed = THRESHOLDS | (OF_EVEN if even else {})
    kept: list[tuple[Any, str, Any]] = []
    for place, value in changed.items():
        name, _, constant = place.rpartition(".")
        module = importlib.import_module(f"cuagent.expert.{name}")
        kept.append((module, constant, getattr(module, constant)))
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in kept:
            setattr(module, constant, value)


@contextmanager
def _emulated(descending: bool) -> Iterator[None]:
    """Make generated modules use emulated kernels, and run without torch.compile and CUDA
    graphs. `descending`: threads and blocks of CUDA C++ run in descending order."""
    compiled: dict[str, SimpleNamespace] = {}
    kept = kernels.load, kernels.replay, torch.compile

    def load(path: str) -> SimpleNamespace:
        source = Path(sys._getframe(1).f_globals["__file__"]).parent / path
        text = source.read_text("utf-8")
        if text not in compiled:
            made = emulation.emulated(str(source), descending)
            made.operator = lambda name: getattr(made, name)
            compiled[text] = made
        return compiled[text]

    def replay(module: Any, compute: Any, arguments: Any, values: Any = ()) -> Any:
        return compute(module, *arguments, *values)

    def uncompiled(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda function: function

    kernels.load, kernels.replay, torch.compile = load, replay, uncompiled  # type: ignore[assignment]
    try:
        yield
    finally:
        kernels.load, kernels.replay, torch.compile = kept  # type: ignore[assignment]
