"""Prepare a task for the expert: open and capture the reference, and extract its text."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cuagent.expert.capture.backward import capture_backward
from cuagent.expert.capture.export import Captured, CaptureError, capture
from cuagent.expert.capture.output_layouts import correct_outputs
from cuagent.expert.capture.reference_text import (
    needed_definitions,
    rebound,
    sibling_imports,
)
from cuagent.task import Device, Task, Values, open_reference
from cuagent.task.settings import candidate_settings, read_settings
from cuagent.task.step import Step

if TYPE_CHECKING:
    import torch


OURS = frozenset(("torch", "F", "load", "compile_together", "triton", "tl", "super", "self"))
"""Names that a candidate's text uses in addition to those of the reference."""


@dataclass(frozen=True)
class Target:
    """The device for which a candidate is generated, and the arithmetic that it may use."""

    device: str
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability, such as (9, 0); (0, 0) on a CPU."""
    processors: int = 1
    """Number of streaming multiprocessors of the GPU, or of CPU cores."""
    tf32: bool = False
    """True if float32 products may be computed in TF32."""
    tf32_convolutions: bool = False
    """True if float32 convolutions may be computed in TF32."""
    exact_channels: int = 16
    """Largest number of input channels of convolutions that keep float32 precision under TF32.

    cuDNN computes many such convolutions in float32 even if TF32 is admitted, and a candidate has
    to be as precise.
    """

    @property
    def has_clusters(self) -> bool:
        """True if the GPU has clusters of blocks, and 228 KB of shared memory in each
        multiprocessor. GPUs of compute capability 12 have 100 KB.
        """
        return (9, 0) <= self.capability < (12, 0)

    @property
    def multiplies_from_shared(self) -> bool:
        """True if tensor cores read operands from shared memory: on the same GPUs that have
        clusters. Those of other GPUs, of all workstations for instance, read registers, so a thread
        has fewer for its sums."""
        return self.has_clusters


@dataclass(frozen=True)
class Subject:
    """A captured task from which the expert generates candidates."""

    captured: Captured
    reference: str
    """Text of the reference class and of the definitions that it needs."""
    entry: str
    attribute: Callable[[str], str]
    """Function that maps a state_dict name to its Python expression, such as
    `self.net[0].weight`.
    """
    target: Target
    backward: Captured | None = None
    """Captured gradients if the task is a training step; else None."""
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Candidates that the search has generated, by their options."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Plans of these candidates, by the options on which a plan depends."""

    @property
    def device(self) -> str:
        """Device type: `cpu` or `cuda`."""
        return self.target.device


def open_subject(task: Task) -> Subject:
    """Capture the reference of a task.

    Raises CaptureError if the module cannot be captured, TaskError if it cannot run.
    """
    step = Step.of(task)
    entry = task.entry if step is None else step.entry
    if entry == "ModelNew":
        raise CaptureError("the reference class has the name ModelNew; rename it")
    text = needed_definitions(task.source, entry)
    if siblings := sibling_imports(text, task.path.parent):
        raise CaptureError(
            f"{task.path.name} imports {', '.join(siblings)} from its folder, which a candidate "
            "cannot read; move the needed definitions into one file"
        )
    if names := ", ".join(sorted(rebound(text) & OURS)):
        raise CaptureError(f"{task.path.name} gives {names} another meaning; rename it")
    reference = replace(open_reference(task), values=Values.DRAWN_THERE)
    arguments = reference.inputs(0)
    backward = None
    if step is not None:
        reference = replace(reference, cls=getattr(reference.module, step.entry))
        backward = capture_backward(reference.model(0), step, arguments)
        arguments = arguments[: step.arguments]
    model = reference.model(0)
    captured = capture(model, arguments)
    if backward is None:
        correct_outputs(captured, model, arguments, task.device is Device.CUDA)
    if names := ", ".join(sorted(OURS & set(captured.arguments))):
        raise CaptureError(f"forward has an argument {names}, which hides a module; rename it")
    return Subject(captured, text, entry, attribute_of(model), target_of(task), backward)


def target_of(task: Task) -> Target:
    """Return the target of a task: its device as torch sees it, and the admitted arithmetic.

    The task's file must have been imported before: torch's settings are then those that it makes.
    """
    if task.device is not Device.CUDA:
        return Target(task.device.value)
    import torch

    properties = torch.cuda.get_device_properties()
    settings = candidate_settings(read_settings(), task.precision)
    return Target(
        task.device.value,
        (properties.major, properties.minor),
        properties.multi_processor_count,
        settings.arithmetic("matmul", task.device) == "tf32",
        settings.arithmetic("conv", task.device) == "tf32",
    )


class attribute_of:
    """Callable that maps a state_dict name to its Python expression, such as
    `self.net[0].weight`.

    A slice of a Sequential has the names of the whole one: its module at index 0 may be named
    "20". An index is used only where all names are equal to the positions.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        from torch import nn

        indexed = (nn.Sequential, nn.ModuleList)
        self._indexed = {
            name
            for name, module in model.named_modules()
            if isinstance(module, indexed) and _has_positions(module)
        }

    def __call__(self, name: str) -> str:
        text, prefix = "self", ""
        for part in name.split("."):
            if _is_plain(part):
                text += f".{part}"
            elif prefix in self._indexed:
                text += f"[{part}]"
            else:
                text = f"getattr({text}, {part!r})"
            prefix = f"{prefix}.{part}" if prefix else part
        return text


def _has_positions(module: torch.nn.Module) -> bool:
    """Return True if the names of a module's children are their positions, from "0" on."""
    names = [name for name, _ in module.named_children()]
    return names == [str(k) for k in range(len(names))]


def _is_plain(name: str) -> bool:
    """Return True if `self.name` in a class body reads the attribute of exactly this name.

    Python prefixes names that begin with two underscores by the class, and replaces some letters.
    """
    hidden = name.startswith("__") and not name.endswith("__")
    same = unicodedata.normalize("NFKC", name) == name
    return name.isidentifier() and same and not hidden and not keyword.iskeyword(name)
