"""Call the original module as a function of flat lists of tensors, and differentiate it.

Travels with an exported or applied kernel, next to `boundary.py`, whose operator needs the
original's outputs without data (fake implementation) and its gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .forms import form_of
from .nesting import Nesting
from .outputs import Outputs, unaliased
from .reads import Reads, recorded_reads
from .state import Unsuitable, state_names


class Functional:
    """The original module, for verified calls with any tensors as parameters and buffers.

    `lock` is held during its calls, because several packages can share the module.
    """

    def __init__(self, original: nn.Module, nesting: Nesting, lock: Any = None) -> None:
        """Raise Unsuitable if the original does not run without data."""
        self.module = original.eval()
        self.names, self.unique = state_names(original)
        self.forms = [form_of(tensor) for tensor in self.unique]
        self._nesting = nesting
        self.lock = lock or threading.RLock()
        self.read: Reads | None = None
        """Attributes of the original that a verified call reads; None if unknown."""
        self.outputs = self._outputs()

    def compute(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """Run the original with `state` as its parameters and buffers (as in `unique`).

        An output that shares memory with an input is copied.
        """
        given = {name: state[at] for name, at in self.names.items()}
        with self.lock:
            out = self._called(given, inputs)
        return unaliased(pytree.tree_leaves(out), [*inputs, *state])

    def gradients(
        self,
        saved: Sequence[Tensor],
        count: int,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Run the original again and return the gradient of each needed tensor, None for others.

        The first `count` of `saved` are inputs, the others parameters and buffers. The results can
        be differentiated if gradients are enabled.
        """
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # For second derivatives a copy must stay part of the caller's graph: a view does.
            copies = [
                (t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_())
                if need
                else t.detach()
                for t, need in zip(saved, needed, strict=True)
            ]
            outputs = self.compute(copies[:count], copies[count:])
            pairs = [
                (out, gradient)
                for out, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and out.requires_grad
            ]
            wanted = [copy for copy, need in zip(copies, needed, strict=True) if need]
            found = iter(
                torch.autograd.grad(
                    [out for out, _ in pairs],
                    wanted,
                    [gradient for _, gradient in pairs],
                    allow_unused=True,
                    create_graph=again,
                )
                if pairs and wanted
                else [None] * len(wanted)
            )
        return [next(found) if need else None for need in needed]

    def _outputs(self) -> Outputs:
        """Return the outputs of a verified call, and set `read`.

        Raises Unsuitable if the original does not run without data.
        """
        state = [tensor.detach() for tensor in self.unique]
        device = state[0].device if state else torch.device("cpu")
        with _disable_current_modes(), torch.no_grad():
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            fakes = [mode.from_tensor(tensor) for tensor in state]
            try:
                with mode:
                    inputs = [
                        torch.empty_strided(
                            form.shape, form.stride, dtype=form.dtype, device=device
                        )
                        for form in self._nesting.flat
                    ]
                    given: dict[str, Tensor] = {n: fakes[at] for n, at in self.names.items()}
                    with recorded_reads(self.module) as read:
                        out = self._called(given, inputs)
                        self.read = read if self._reads_with_gradients(given, inputs) else None
                    leaves, spec = pytree.tree_flatten(out)
                    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
                        raise Unsuitable("its output holds other values than tensors")
                    leaves = unaliased(leaves, [*inputs, *fakes])
            except Unsuitable:
                raise
            except Exception as error:  # the user's module on fake tensors may raise any type
                line = str(error).strip().partition("\n")[0]
                raise Unsuitable(
                    f"the original does not run without data ({line[:120]})"
                ) from error
        forms = [(tuple(t.shape), t.stride(), t.dtype) for t in leaves]
        return Outputs(forms, None if isinstance(out, Tensor) else spec)

    def _called(self, given: dict[str, Tensor], inputs: Sequence[Tensor]) -> Any:
        return torch.func.functional_call(self.module, given, self._nesting.arguments(inputs))

    def _reads_with_gradients(self, given: dict[str, Tensor], inputs: Sequence[Tensor]) -> bool:
        """Call the original with gradients enabled, because it may read other attributes then.

        Returns False if that fails.
        """
        trained = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in given.items()}
        try:
            with torch.enable_grad():
                self._called(trained, inputs)
        except Exception:  # noqa: BLE001  the user's module on fake tensors may raise any type
            return False
        return True
