"""Build the model that a worker runs: the candidate's ModelNew, or the reference as eager, compiled
or another rung.

All these models ("arms" of a timing) run in the same program with the same flags, which are set
before any of their code is imported. A difference in time is therefore a difference between the
models.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.arms import CANDIDATE, COMPILE, EAGER, GRAPH
from cuagent.attempt import ENTRY, MODULE
from cuagent.task import Device, Precision, Task, TorchSettings, Values, open_reference, unflatten
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.task.step import as_step
from cuagent.worker.channels_last import to_channels_last
from cuagent.worker.operators import refuse_computing_operators

if TYPE_CHECKING:
    from torch import nn

COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
"""Environment variable that sets the number of compiler processes of torch.compile."""


@dataclass(frozen=True)
class ModelSpec:
    """Data from which a worker constructs the model of one session. For a candidate `task` is None,
    because a candidate must not see the reference."""

    arm: str
    device: Device
    precision: Precision
    inputs: dict[str, Any]
    """Nesting of forward's positional arguments (`cuagent.task.flatten`)."""
    output: dict[str, Any]
    """Nesting of the value that forward returns (`cuagent.task.flatten`)."""
    state: tuple[str, ...]
    """Names of the state dict's entries, in the order in which the weights' arena stores their
    tensors."""
    init: dict[str, Any]
    """Constructor arguments as JSON: the list [positional, named] in the form of
    `cuagent.task.flatten`."""
    seed: int
    """torch's seed for the construction. It is the same for every arm, so that random values
    outside the state dict are the same too."""
    task: Task | None = None
    device_bytes: int | None = None
    """Bytes of GPU memory that a candidate may use; None means no limit."""
    kept_bytes: int | None = None
    """Bytes of GPU memory that a candidate may still occupy between calls; None means
    `device_bytes`."""
    settings: TorchSettings | None = None
    """torch's settings to apply in the process; None keeps those that the task's file sets."""
    step: int = 0
    """Number of forward's arguments if a training step (forward and backward) is judged; 0 if only
    forward is."""
    kernels_only: bool = False
    """True if torch operators that compute are refused in the candidate's process
    (`operators.py`)."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "task": None if self.task is None else task_to_json(self.task)
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> ModelSpec:
        task, settings = data["task"], data["settings"]
        kinds: dict[str, Any] = {
            "device": Device(data["device"]),
            "precision": Precision(data["precision"]),
            "state": tuple(data["state"]),
            "task": None if task is None else task_from_json(task),
            "settings": None if settings is None else TorchSettings.from_json(settings),
        }
        return ModelSpec(**data | kinds)


def import_arm(model_spec: ModelSpec, folder: Path) -> Callable[[], nn.Module]:
    """Import the model's code and return a function that constructs the model.

    The import runs the candidate's module body. Raises ImportError if the class ModelNew is
    missing.
    """
    if model_spec.arm != CANDIDATE:
        assert model_spec.task is not None
        # The referee loads all weights before the first call.
        reference = replace(open_reference(model_spec.task), values=Values.UNDEFINED)
        return lambda: _compiled(reference.model(model_spec.seed), model_spec)
    if model_spec.kernels_only:
        refuse_computing_operators()
    if "torch._inductor.config" in sys.modules:  # imported before the fork
        _limit_compilers()
    spec = importlib.util.spec_from_file_location("model_new", folder / MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_new"] = module
    sys.path.insert(0, str(folder))
    spec.loader.exec_module(module)
    if not hasattr(module, ENTRY):
        raise ImportError(f"{MODULE} has no class {ENTRY}{_other_class(module)}")
    return lambda: _constructed(getattr(module, ENTRY), model_spec)


def _other_class(module: ModuleType) -> str:
    """Return a hint that names the module's other classes, or "" if it has none."""
    import torch

    own = [c for c in vars(module).values() if getattr(c, "__module__", None) == module.__name__]
    names = [c.__name__ for c in own if isinstance(c, type) and issubclass(c, torch.nn.Module)]
    return f"; it has {', '.join(names)}: rename one" if names else ""


def _constructed(cls: Any, model_spec: ModelSpec) -> nn.Module:
    import torch

    torch.manual_seed(model_spec.seed)
    args, named = unflatten([], model_spec.init)
    if isinstance(cls, type) and not issubclass(cls, torch.nn.Module):
        raise TypeError(f"{ENTRY} is not a torch.nn.Module")
    _check_call(cls, args, named, f"{ENTRY} is constructed as the reference is, with")
    model = cls(*args, **named)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{ENTRY} is not a torch.nn.Module")
    if model_spec.step:
        return as_step(model, model_spec.step).eval().to(model_spec.device.value)
    if model_spec.inputs:  # empty in a profile, which does not know the form of the inputs
        given = [spec["kind"] for spec in model_spec.inputs["items"]]
        _check_call(
            model.forward, given, {}, f"{ENTRY}.forward is called as the reference's is, with"
        )
    return model.eval().to(model_spec.device.value)


def _check_call(function: Any, args: Sequence[Any], named: Mapping[str, Any], what: str) -> None:
    """Check that `function` accepts these arguments.

    Otherwise raises a TypeError, whose message starts with `what` and shows the arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have no signature
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        shown = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in named.items())])
        raise TypeError(f"{what} ({shown[:100]}): {error}") from None


def _compiled(model: nn.Module, model_spec: ModelSpec) -> nn.Module:
    """Prepare the reference as the rung `model_spec.arm`, such as `eager`, `compile+tf32` or
    `max-autotune+bf16`.

    The name is a mode (eager or a mode of torch.compile), then options after plus signs. The
    settings of the spec include the options `tf32`, `fp32` and `cudnn_benchmark`. They are applied
    again here, because the task's file or the constructor may have changed them.
    """
    mode, *options = model_spec.arm.split("+")
    if model_spec.settings is not None:
        model_spec.settings.apply()
    if "channels_last" in options:
        model = to_channels_last(model)
    if "bf16" in options:
        _autocast(model, model_spec.device)
    # In place, so that the names in the state dict do not change.
    if mode != EAGER:
        _limit_compilers()
        model.compile(mode=None if mode == COMPILE else mode)
    if GRAPH in options:
        from cuagent.kernels.cuda_graph import graph_calls

        graph_calls(model, required=True)
    return model


def _limit_compilers() -> None:
    """Set torch.compile's number of compiler processes from the environment variable COMPILERS.

    torch reads the variable only when it is imported, which was before the fork.
    """
    import torch._inductor.config

    if count := os.environ.get(COMPILERS):
        torch._inductor.config.compile_threads = int(count)


def _autocast(model: nn.Module, device: Device) -> None:
    """Run the forward of `model` under bfloat16 autocast and return bfloat16 results as float32."""
    import torch

    plain = model.forward

    def forward(*arguments: Any) -> Any:
        with torch.autocast(device.value, torch.bfloat16):
            output = plain(*arguments)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype is torch.bfloat16 else x, output
        )

    model.forward = forward
