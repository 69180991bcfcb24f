"""Run an accepted kernel in place of a module of a running script, to time the script.

The kernel's module uses the live parameters of the original module, without a copy. This code runs
in the user's process.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.capture.intercept import intercept
from cuagent.capture.names import Names

if TYPE_CHECKING:
    from torch import nn


class Swapper:
    """Patch of `nn.Module.__call__` that runs a candidate in place of the captured module and times
    the script's steps.

    Without a candidate it only times the steps.
    """

    def __init__(self, module: str, order: dict[str, Any]) -> None:
        self.target = module
        self.candidate: str | None = order["candidate"]
        self.positional: list[bool] = order["positional"]
        self.named: dict[str, bool] = order["named"]
        self.forms = {
            tuple((x["dtype"], tuple(x["shape"]), x["device"]) for x in shape["inputs"])
            for shape in order["shapes"]
        }
        self.training = {shape["training"] for shape in order["shapes"]}
        self.names = Names()
        self.steps: list[tuple[float, float]] = []
        self.swapped, self.calls, self.problem = 0, 0, ""
        self.spent, self.first_spent = 0.0, 0.0
        """Seconds to build the kernel and call it for the first time, after the script's first step
        and during it. They are subtracted from the measured times."""
        self._warm: set[tuple[int, object]] = set()
        self._new: dict[int, nn.Module] = {}
        self._depth = 0

    def install(self) -> None:
        """Patch `nn.Module.__call__`: calls of the named modules run the package from now on."""
        intercept(self.names, self._call)

    def _call(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        self._depth += 1
        begin = time.perf_counter()
        try:
            new, given = self._replacement(module, args, kwargs)
            return run(*args, **kwargs) if new is None else new.forward(*given)
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

    def _replacement(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> tuple[nn.Module | None, list[Any]]:
        """Return (kernel's module, inputs for it) for a call; (None, []) if the original module
        must run."""
        import torch

        if not self.names.is_target(self.target, module, outermost=self._depth == 1):
            return None, []
        self.calls += 1
        if self.candidate is None or self.problem or torch.is_grad_enabled():
            return None, []
        same = len(args) == len(self.positional) and list(kwargs) == list(self.named)
        if not same or module.training not in self.training:
            return None, []
        pairs = [*zip(args, self.positional, strict=True)]
        pairs += [(kwargs[name], is_tensor) for name, is_tensor in self.named.items()]
        given = [value for value, is_tensor in pairs if is_tensor]
        if not all(type(value) is torch.Tensor for value in given):
            return None, []
        form = tuple((str(x.dtype)[6:], tuple(x.shape), x.device.type) for x in given)
        if form not in self.forms:
            return None, []
        if (id(module), form) not in self._warm:
            self._warm_up(module, form, given)
        self.swapped += 1
        return self._new[id(module)], given

    def _warm_up(self, module: nn.Module, form: object, given: list[Any]) -> None:
        """Build the kernel's module and call it once on copies of the inputs, before it is timed.

        The time is added to `spent` or `first_spent`.
        """
        begin = time.perf_counter()
        if id(module) not in self._new:
            self._new[id(module)] = self._built(module)
        self._new[id(module)].forward(*(x.clone() for x in given))
        if given and given[0].is_cuda:
            import torch

            torch.cuda.synchronize()
        self._warm.add((id(module), form))
        elapsed = time.perf_counter() - begin
        self.spent += elapsed if self.steps else 0.0
        self.first_spent += 0.0 if self.steps else elapsed

    def _built(self, module: nn.Module) -> nn.Module:
        """Return the kernel's module with the parameters and buffers of `module` (no copies)."""
        assert self.candidate is not None
        folder = str(Path(self.candidate).parent)
        spec = importlib.util.spec_from_file_location("model_new", self.candidate)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules["model_new"] = made
        sys.path.insert(0, folder)
        spec.loader.exec_module(made)
        new: nn.Module = made.ModelNew()
        new.load_state_dict(module.state_dict(keep_vars=True), strict=True, assign=True)
        first = next(iter(module.state_dict().values()), None)
        return new.to(first.device if first is not None else "cpu").eval()
