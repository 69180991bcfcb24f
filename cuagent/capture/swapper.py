"""Let a module of a running script run an exported kernel, to time the script.

The captured module is changed in place by the package, as `optimize_` does, so its calls run as
with the package: also where gradients are wanted, under autocast, and for other shapes.
Runs in the user's process.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuagent.capture.intercept import intercept
from cuagent.capture.names import Names

if TYPE_CHECKING:
    from torch import nn

REPLACEMENT = "_cuagent_replacement"
"""Attribute that a package gives to a module that it changed."""


class Swapper:
    """Patch of `nn.Module.__call__` that changes the captured module before its first call.

    It also times the steps of the script. Without a package it only times them.
    """

    def __init__(self, module: str, order: dict[str, Any]) -> None:
        self.target = module
        self.folder: str | None = order["folder"]
        """Folder with the package `order["package"]`; None to time the script as it is."""
        self.package: str = order["package"]
        self.names = Names()
        self.steps: list[tuple[float, float]] = []
        self.swapped, self.calls, self.problem = 0, 0, ""
        self.spent, self.first_spent = 0.0, 0.0
        """Seconds to build the kernel and call it for the first time, after the script's first step
        and during it. They are subtracted from the measured times."""
        self._warm: set[tuple[int, object]] = set()
        self._modules: list[nn.Module] = []
        """Changed modules; held, so that their `id` is not used again."""
        self._depth = 0
        self._is_changing = False
        """True while the package is opened: it calls the original and records attribute reads."""

    def install(self) -> None:
        """Patch `nn.Module.__call__`: calls of the named modules run the package from now on."""
        intercept(self.names, self._call)

    def _call(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if self._is_changing:
            return run(*args, **kwargs)
        self._depth += 1
        begin = time.perf_counter()
        try:
            if self.names.is_target(self.target, module, outermost=self._depth == 1):
                self.calls += 1
                if self.folder is not None and not self.problem:
                    self._is_changing = True
                    try:
                        self._change(module, args, kwargs)
                    finally:
                        self._is_changing = False
            return run(*args, **kwargs)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.steps.append((begin, time.perf_counter()))

    def window(self) -> float:
        """Return the wall time in seconds of the script's steps after the first one, without the
        warm-up times in `spent`.

        With only one step, return the time of that step.
        """
        if not self.steps:
            return 0.0
        first, last = self.steps[0], self.steps[-1]
        if len(self.steps) == 1:
            return first[1] - first[0] - self.first_spent
        return last[1] - first[1] - self.spent

    def _change(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Change the module before its first call, and run the kernel once for each new shape.

        The time is added to `spent` or `first_spent`. Sets `problem` if the package refuses.
        """
        begin = time.perf_counter()
        if REPLACEMENT not in module.__dict__ and (why := self._replaced(module)):
            self.problem = f"the kernel cannot replace the module: {why}"
            return
        replacement = module.__dict__[REPLACEMENT]
        given = replacement.inputs(args, kwargs)
        form = None if given is None else tuple(map(_form, given))
        if (id(module), form) in self._warm:
            return
        self._warm.add((id(module), form))
        if given is not None:
            _warm_up(replacement, given)
        elapsed = time.perf_counter() - begin
        self.spent += elapsed if self.steps else 0.0
        self.first_spent += 0.0 if self.steps else elapsed

    def _replaced(self, module: nn.Module) -> str:
        """Let the module run the kernel; return the reason if it cannot, else ""."""
        assert self.folder is not None
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        opened: Any = importlib.import_module(f"{self.package}.model_new")
        why: str = opened.replace.replace_(module, opened.PACKAGE)
        if why:
            return why
        self._modules.append(module)
        replacement = module.__dict__[REPLACEMENT]
        forward = replacement.forward

        def counted(*args: Any) -> Any:
            self.swapped += 1
            return forward(*args)

        replacement.forward = counted
        return ""


def _form(value: Any) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.device.type, value.requires_grad
    return type(value).__name__


def _warm_up(replacement: Any, given: tuple[Any, ...]) -> None:
    """Run the kernel, and its own backward, once on copies of a call's arguments.

    Does nothing for a call that runs the original. The counter of calls is not changed.
    """
    import torch

    boundary = replacement.fitting(given)
    if boundary is None:
        return
    tensors = [tensor.detach().clone() for tensor in boundary.nesting.tensors(given)]
    copies, counted = boundary.nesting.arguments(tensors), replacement.forward
    replacement.forward = replacement.kernel.forward
    try:
        replacement.run_without_gradients(copies)
        if boundary.own is not None:
            device = tensors[0].device if tensors else None
            cotangents = [
                torch.zeros(shape, dtype=dtype, device=device)
                for shape, _, dtype in (boundary.outputs.forms[k] for k in boundary.own.outputs)
            ]
            replacement.run_backward((*copies, *cotangents))
    finally:
        replacement.forward = counted
    if tensors and tensors[0].is_cuda:
        torch.cuda.synchronize()
