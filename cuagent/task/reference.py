"""Import a task's module, build models, and draw inputs from seeds.

Everything here runs the user's code in the calling process. So it is for trusted processes (the
referee's oracle, the profiler, the expert), never for the one that runs a candidate.

Invariant: the code that runs is `Task.source` as it was loaded, the global random state does not
change, and no file is written (no .pyc next to the user's).
"""

from __future__ import annotations

import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.task.imports import advice, package_of
from cuagent.task.memory import SMALLER, shortage
from cuagent.task.spec import UNBOUNDED_INTEGERS, TensorSpec, parse_init, parse_inputs
from cuagent.task.task import Device, Task, TaskError
from cuagent.task.tree import TreeError, flatten, unflatten

if TYPE_CHECKING:
    import torch

SHOWN = 3
"""Largest number of submodules that the note about training mode names."""


class Values(StrEnum):
    """Origins of the numbers of large random weights (`deferred_fills.py`)."""

    CONSTRUCTED = "constructed"
    """The constructor draws them on the CPU, as in the user's process."""
    DRAWN_THERE = "drawn there"
    """They are drawn on the task's GPU, with the same distributions but other numbers."""
    UNDEFINED = "undefined"
    """They have none, because the caller loads a state dict before it uses the model."""


@dataclass(frozen=True)
class Reference:
    """The imported module of a task. Construct it with `open_reference`."""

    task: Task
    module: ModuleType
    cls: type[torch.nn.Module]
    init_args: tuple[tuple[Any, ...], dict[str, Any]]
    """Positional and named arguments of the constructor."""
    draws_on_cpu: bool = True
    """True if inputs are drawn on the CPU when the GPU has too little free memory to draw them.
    This takes a second for a gigabyte or longer."""
    constructing: Callable[[], AbstractContextManager[None]] = field(
        default=nullcontext, compare=False
    )
    """Function that returns the context in which the user's constructor runs."""

    values: Values = Values.CONSTRUCTED
    """Origin of the numbers of a model's large random weights."""
    _not_deferrable: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty if fills of this module cannot be put off."""

    def model(self, seed: int = 0) -> torch.nn.Module:
        """Return a new model in eval mode on the task's device, with parameters drawn from `seed`.

        Raises TaskError.
        """
        args, named = self.init_args
        what = f"{self.task.entry}({_call(args, named)})"
        hint = "" if self.task.init is not None else "; give its arguments with --init"
        advice = hint if not (args or named) else ""
        with _user_code(self.task, what, advice):
            model = self._with_deferred_fills(seed)
            if model is None:
                with _seeded(seed), self.constructing():
                    model = self._construct()
        _require_values(self.task, model)
        with _user_code(self.task, f"moving {self.task.entry} to {self.task.device}"):
            return model.to(self.task.device.value)

    def _construct(self) -> torch.nn.Module:
        args, named = self.init_args
        return self.cls(*args, **named).eval()

    def _with_deferred_fills(self, seed: int) -> torch.nn.Module | None:
        """Return a model whose large random fills are put off; None if they cannot be."""
        device = self.task.device
        draw = self.values is Values.DRAWN_THERE
        if self.values is Values.CONSTRUCTED or self._not_deferrable:
            return None
        if draw and device is Device.CPU:
            return None
        from cuagent.task.deferred_fills import DeferredFills

        fills = DeferredFills()
        with _seeded(seed):
            try:
                with self.constructing(), fills:
                    model = self._construct()
                if fills.finish(model, device.value, draw=draw):
                    return model
            except (Exception, SystemExit):
                if not fills.was_used:
                    raise
        self._not_deferrable.append(True)
        return None

    def inputs(self, seed: int = 0) -> list[Any]:
        """Return the positional arguments of one call, drawn from `seed`, on the task's device.

        Raises TaskError.
        """
        drawn = self._draw_inputs(seed)
        if not isinstance(drawn, list | tuple):
            raise TaskError(
                f"{self.task.path}: get_inputs() returns a {type(drawn).__name__}; "
                "it must return a list of the arguments of forward()"
            )
        try:
            leaves, spec = flatten(list(drawn), "inputs")
        except TreeError as error:
            raise TaskError(f"{self.task.path}: {error}") from error
        return unflatten([leaf.to(self.task.device.value) for leaf in leaves], spec)

    def _draw_inputs(self, seed: int) -> Any:
        """Draw the inputs on the GPU if the task runs there, because a CPU takes a second for a
        gigabyte.

        User code that fails with a default device (it uses numpy, or a generator on the CPU) draws
        on the CPU.
        """
        import torch

        given = self.task.inputs
        what = "get_inputs()" if given is None else f"--inputs {given}"
        if self.task.device is Device.CUDA:
            there = torch.device(self.task.device.value)
            try:
                with _user_code(self.task, what), _seeded(seed), there:
                    return self._draw_once()
            except TaskError as error:
                if isinstance(error.__cause__, torch.OutOfMemoryError) and not self.draws_on_cpu:
                    raise
        with _user_code(self.task, what), _seeded(seed):
            return self._draw_once()

    def _draw_once(self) -> Any:
        if self.task.inputs is not None:
            return [_draw(entry) for entry in parse_inputs(self.task.inputs)]
        return self.module.get_inputs()


def open_reference(task: Task) -> Reference:
    """Import the user's module and return it as a Reference.

    Raises TaskError that names the user's file and line.
    """
    import torch

    if task.device is Device.CUDA and not torch.cuda.is_available():
        raise TaskError(
            f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu"
        )
    module = ModuleType(f"cuagent_task_{task.digest[:12]}")
    module.__file__ = str(task.path)
    with _user_code(task, "the import", lambda error, task: advice(error, task.path)):
        module.__package__ = package_of(task.path)[1]
        sys.modules[module.__name__] = module
        exec(compile(task.source, str(task.path), "exec"), module.__dict__)
    cls = getattr(module, task.entry, None)
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise TaskError(f"{task.path}: {task.entry} is not a subclass of torch.nn.Module")
    if task.inputs is None and not callable(getattr(module, "get_inputs", None)):
        raise TaskError(
            f'{task.path}: no get_inputs(); give the inputs, for instance --inputs "f32[8,512]"'
        )
    return Reference(task, module, cls, _init_args(task, module))


def check_runs(reference: Reference, seed: int = 0) -> None:
    """Call forward once under no_grad. Raises TaskError if it fails, with the reason and place."""
    import torch

    task = reference.task
    model = reference.model(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != task.device:
            raise TaskError(
                f"{task.path}: {name} stays on {tensor.device} when the model is moved to "
                f"{task.device}; create it without a fixed device"
            )
    inputs = reference.inputs(seed)
    fed = ", ".join(map(_shape, inputs))
    with torch.no_grad(), _user_code(task, f"{task.entry}.forward({fed})", _forward_hint):
        output = model(*inputs)
    try:
        leaves, _ = flatten(output, "its output")
    except TreeError as error:
        raise TaskError(f"{task.path}: {task.entry}: {error}") from error
    if not leaves:
        raise TaskError(f"{task.path}: {task.entry} returns no tensor ({_shape(output)})")
    for leaf in leaves:
        if leaf.device.type != task.device:
            raise TaskError(
                f"{task.path}: {task.entry} returns a tensor on {leaf.device} although its inputs "
                f"are on {task.device}; create tensors on the device of an input"
            )
    _require_finite_output(task, leaves, fed)


def training_note(task: Task, model: torch.nn.Module) -> str:
    """Return one line on submodules that act differently in training mode; "" if there are none.

    A task is judged in eval mode, whichever mode its constructor leaves it in.
    """
    found = [f"{path} ({type(module).__name__})" for path, module in _mode_dependent(model)]
    if re.search(r"\bself\.training\b|\bF\.(alpha_|feature_alpha_)?dropout", task.source):
        found.append("forward")
    if not found:
        return ""
    shown = ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" * (len(found) > SHOWN))
    return (
        f"judged in eval mode: {shown} may act differently in training mode, which is neither "
        "verified nor timed"
    )


def _mode_dependent(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the name and module of each submodule that computes something else in training mode."""
    import torch

    drops = torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU
    for path, module in model.named_modules():
        name = path or type(model).__name__
        rate = getattr(module, "dropout", 0.0)
        norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
        if (
            (norm and module.track_running_stats)
            or (isinstance(module, drops) and getattr(module, "p", 1.0))
            or (isinstance(rate, float) and rate > 0)
        ):
            yield name, module


def _require_values(task: Task, model: torch.nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise TaskError(
                f"{task.path}: {name} of {task.entry} is on the meta device and has no values; "
                "create it on a real device"
            )


def _require_finite_output(task: Task, leaves: list[torch.Tensor], fed: str) -> None:
    """Raise TaskError if the outputs have no finite number, so that nothing can be compared."""
    forms = ", ".join(map(_shape, leaves))
    if not any(leaf.numel() for leaf in leaves):
        raise TaskError(
            f"{task.path}: {task.entry}.forward({fed}) returns only empty tensors ({forms}); "
            "use inputs that are not empty"
        )
    if not any(bool(leaf.isfinite().any()) for leaf in leaves):
        raise TaskError(
            f"{task.path}: {task.entry}.forward({fed}) returns only NaN and infinities ({forms}); "
            "check that all parameters are initialised and that the inputs fit"
        )


def _init_args(task: Task, module: ModuleType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if task.init is not None:
        return parse_init(task.init)
    if not callable(getattr(module, "get_init_inputs", None)):
        return (), {}
    with _user_code(task, "get_init_inputs()"), _seeded(0):
        given = module.get_init_inputs()
    match given:
        case dict():
            return (), given
        # KernelBook and other data sets in KernelBench's form return [[positional], {named}].
        case [list() | tuple() as args, dict() as named]:
            return tuple(args), named
        case list() | tuple():
            return tuple(given), {}
    raise TaskError(
        f"{task.path}: get_init_inputs() returns a {type(given).__name__}; "
        f"it must return a list of the arguments of {task.entry}"
    )


def _draw(entry: Any) -> Any:
    """Return the value for one entry of `--inputs`, such as a tensor for `f32[8,512]`.

    Tensors are drawn from torch's global random state.
    """
    import torch

    match entry:
        case TensorSpec(dtype="bool", shape=shape):
            return torch.rand(shape) < 0.5
        case TensorSpec(dtype=name, shape=shape, below=below):
            dtype = getattr(torch, name)
            if not (dtype.is_floating_point or dtype.is_complex):
                return torch.randint(int(below or UNBOUNDED_INTEGERS), shape, dtype=dtype)
            draw = torch.randn if below is None else torch.rand
            wide = dtype if dtype.is_complex else torch.promote_types(dtype, torch.float32)
            return (draw(shape, dtype=wide) * (below or 1)).to(dtype)
        case list():
            return [_draw(item) for item in entry]
        case tuple():
            return tuple(_draw(item) for item in entry)
        case dict():
            return {key: _draw(value) for key, value in entry.items()}
    return entry


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random numbers of torch, numpy and Python for the block, then restore their
    state."""
    import numpy
    import torch

    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            numpy.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)


@contextmanager
def _user_code(
    task: Task, what: str, hint: str | Callable[[BaseException, Task], str] = ""
) -> Iterator[None]:
    """Run the user's code in the block; turn any error into one TaskError.

    Files next to the user's are importable, and no .pyc is written. `what` names the step in the
    error; `hint` is appended to it.
    """
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    folder = str(package_of(task.path)[0])
    sys.path.insert(0, folder)
    try:
        yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        place = _place_of(error, task)
        if short := shortage(error):
            raise TaskError(f"{place}: {what} {short}; {SMALLER}") from error
        advice = hint if isinstance(hint, str) else hint(error, task)
        raise TaskError(f"{place}: {what} failed: {_one_line(error)}{advice}") from error
    finally:
        sys.dont_write_bytecode = bytecode
        if folder in sys.path:
            sys.path.remove(folder)


def root_folder(task: Task) -> Path:
    """Return the folder of the user's file, or the folder of its package."""
    return package_of(task.path)[0]


def _place_of(error: BaseException, task: Task) -> str:
    """Return `file:line` of the innermost frame of an error in the user's folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place, folder = str(task.path), task.path.parent
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        # A virtual environment may be next to the user's file; skip its lines.
        if file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts:
            place = f"{file}:{frame.lineno}"
    return place


def _one_line(error: BaseException) -> str:
    """Return an error's type and message in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _forward_hint(error: BaseException, task: Task) -> str:
    text = str(error).lower()
    if "same device" in text or "not compiled with cuda" in text or "no nvidia driver" in text:
        return f"; the task runs on {task.device}: create tensors on the device of an input"
    if isinstance(error, TypeError | RuntimeError | ValueError | IndexError):
        source = "--inputs" if task.inputs is not None else "get_inputs()"
        return f"; check that {source} fits"
    return ""


def _call(args: tuple[Any, ...], named: dict[str, Any]) -> str:
    parts = [*map(_shape, args), *(f"{key}={_shape(value)}" for key, value in named.items())]
    return ", ".join(parts)


def _shape(value: Any) -> str:
    """Format a value for an error message: `float32[8,512]` for a tensor, else a short repr."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(", ", ",")
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_shape, value[:4])) + (", ..." if len(value) > 4 else "")
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
