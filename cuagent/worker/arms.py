"""Which model a session runs: the candidate's, or the reference in one of its modes.

All arms go through one program and one protocol, with the same flags set before anything of theirs
is imported, so that a difference in time is a difference in the model.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cuagent.attempt import ENTRY, MODULE
from cuagent.task import Device, Precision, Task, open_reference, unflatten

if TYPE_CHECKING:
    from torch import nn

CANDIDATE = "candidate"
EAGER = "eager"
COMPILE = "compile"
"""torch.compile as it is by default; any other name is passed to it as its mode, and may have
options behind it: `+tf32`, `+fp32`, `+bf16` (autocast), `+channels_last`."""
MODES = (EAGER, COMPILE, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OPTIONS = ("tf32", "fp32", "bf16", "channels_last")


@dataclass(frozen=True)
class ModelSpec:
    """What a session is to run. A candidate gets no `task`: it must not see the reference."""

    arm: str
    device: Device
    precision: Precision
    inputs: dict[str, Any]
    """Spec of the positional arguments (`cuagent.task.flatten`)."""
    output: dict[str, Any]
    """Spec of what forward gives back."""
    state: tuple[str, ...]
    """Names of the state dict, in the order of the weights arena."""
    init: dict[str, Any]
    """Spec of the list [positional arguments, named arguments] of the constructor."""
    seed: int
    """For the construction, the same in every arm: what is random in it and in no state dict."""
    task: Task | None = None
    device_bytes: int | None = None
    """Of the GPU's memory, for a candidate; None: as much as there is."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "task": None if self.task is None else task_to_json(self.task)
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> ModelSpec:
        task = data["task"]
        kinds: dict[str, Any] = {
            "device": Device(data["device"]),
            "precision": Precision(data["precision"]),
            "state": tuple(data["state"]),
            "task": None if task is None else task_from_json(task),
        }
        return ModelSpec(**data | kinds)


def task_from_json(data: dict[str, Any]) -> Task:
    """The inverse of `task_to_json`. Raises KeyError, TypeError or ValueError for other data."""
    for name, value in data.items():
        if not isinstance(value, str) and (value is not None or name not in ("inputs", "init")):
            raise TypeError(f"{name} of the task is no text")
    kinds: dict[str, Any] = {
        "path": Path(data["path"]),
        "device": Device(data["device"]),
        "precision": Precision(data["precision"]),
    }
    return Task(**data | kinds)


def task_to_json(task: Task) -> dict[str, Any]:
    return dataclasses.asdict(task) | {"path": str(task.path)}


def set_precision(precision: Precision) -> None:
    """TF32 on in products and convolutions where the task admits it, off where it does not.

    torch's own default is on for convolutions, which would let eager be less precise than asked.
    """
    import torch

    admitted = precision is not Precision.MATCH
    torch.backends.cuda.matmul.allow_tf32 = admitted
    torch.backends.cudnn.allow_tf32 = admitted


def import_arm(model_spec: ModelSpec, folder: Path) -> Callable[[], nn.Module]:
    """Import the model's code; what comes back constructs it. Runs the candidate's module body."""
    if model_spec.arm != CANDIDATE:
        assert model_spec.task is not None
        reference = open_reference(model_spec.task)
        return lambda: _compiled(
            reference.model(model_spec.seed), model_spec.arm, model_spec.device
        )
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
    """A hint where a class that could be meant is called something else."""
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
    _fits(cls, args, named, f"{ENTRY} is constructed as the reference is, with")
    model = cls(*args, **named)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{ENTRY} is not a torch.nn.Module")
    if model_spec.inputs:  # a profile is not told their form
        fed = [spec["kind"] for spec in model_spec.inputs["items"]]
        _fits(model.forward, fed, {}, f"{ENTRY}.forward is called as the reference's is, with")
    return model.eval().to(model_spec.device.value)


def _fits(function: Any, args: Sequence[Any], named: Mapping[str, Any], what: str) -> None:
    """Raises TypeError in words that say what is wanted, where a call would raise it anyway."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # none that could be told
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        shown = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in named.items())])
        raise TypeError(f"{what} ({shown[:100]}): {error}") from None


def _compiled(model: nn.Module, arm: str, device: Device) -> nn.Module:
    """The reference as a rung: a mode, and options behind plus signs, e.g. `compile+tf32`."""
    import torch

    mode, *options = arm.split("+")
    if "tf32" in options:
        set_precision(Precision.TF32)
    if "fp32" in options:
        set_precision(Precision.MATCH)
    if "channels_last" in options:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if "bf16" in options:
        _autocast(model, device)
    if mode == EAGER:
        return model
    # In place, so that the names of the state dict stay as they are.
    model.compile(mode=None if mode == COMPILE else mode)
    return model


def _autocast(model: nn.Module, device: Device) -> None:
    """Let `model` compute in bfloat16 where torch deems it safe, and answer in float32."""
    import torch

    plain = model.forward

    def forward(*arguments: Any) -> Any:
        with torch.autocast(device.value, torch.bfloat16):
            output = plain(*arguments)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype is torch.bfloat16 else x, output
        )

    model.forward = forward
