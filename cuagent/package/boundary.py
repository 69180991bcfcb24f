"""Register a verified kernel as a torch operator, so that graphs and autograd can use it.

Travels with an exported or applied kernel, next to `replace.py`. Each package registers one
operator in its own namespace, `call(Tensor[] inputs, Tensor[] state) -> Tensor[]`. It runs the
kernel for a verified call and the original (`functional.py`) for every other, so its fake
implementation and its gradients are those of the original. torch.compile and torch.export keep it
as one node.

Gradients come from the kernel's own backward pass, if one was verified (`gradients.py`). Otherwise
the backward pass runs the original again on the saved inputs and parameters, and differentiates it.
Second derivatives always use the original. Eager calls use `recomputed.py` instead.
Not covered: vmap and forward-mode differentiation of the operator, modules without any tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._library.autograd import Info, make_autograd_impl

from .flags import flags_set
from .functional import Functional
from .gradients import OwnBackward
from .machine import namespace
from .nesting import Nesting
from .seen import MASK, Seen
from .state import bind_tensors, called, pointers

Run = Callable[[tuple[Any, ...]], Any]

_pointer, _with_gradients = Tensor.data_ptr, torch.is_grad_enabled
MAX_FOREIGN = 256
"""Largest number of kernel modules that are cached for parameters without a known module, such as
those of a loaded torch.export program."""


class Boundary:
    """The torch operators for one verified shape of a package.

    `forms` are the verified arguments, nested as in the call; each tensor is a `Form`.
    """

    def __init__(
        self,
        folder: Path,
        forms: Any,
        original: nn.Module,
        make_kernel: Callable[[], nn.Module],
        lock: Any = None,
        backward: dict[str, Any] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> None:
        """`folder` holds the package, `make_kernel` constructs the kernel's module, `backward` is
        that entry of `verified.json`, `flags` are torch's flags during the verification.

        Raises Unsuitable if the original does not run without data."""
        self._flags = flags or {}
        self.nesting = Nesting(forms)
        self._is_flat = self.nesting.is_flat
        self.original = Functional(original, self.nesting, lock)
        self.outputs = self.original.outputs
        self._make_kernel, self._lock = make_kernel, self.original.lock
        self._known: dict[tuple[int, ...], weakref.ref[Any]] = {}
        self._foreign: dict[tuple[int, ...], tuple[list[weakref.ref[Tensor]], nn.Module]] = {}
        self._fitting, self._without_gradients = Seen(), Seen()
        self.own: OwnBackward | None = None
        """The kernel's own backward; None if none was verified."""
        if backward is not None:
            self.own = OwnBackward(backward, self.original.names, len(self.nesting.flat))
        self._library, self.call = self._register(folder)

    # -- kernels

    def know(self, state: Sequence[Tensor], owner: Any) -> None:
        """Remember the owner of these parameters. For calls with them, the operator runs
        `owner.run_in_graph(args)`."""
        self._known = {k: v for k, v in self._known.items() if v() not in (None, owner)}
        self._known[pointers(state)] = weakref.ref(owner)

    def _owner(self, places: tuple[int, ...]) -> Any:
        """Return the owner of the parameters at these addresses; None if no module has them now.

        A module may have got other parameters since its last call, as by
        `load_state_dict(assign=True)`, while a compiled graph or an exported program has the old
        ones.
        """
        known = self._known.get(places)
        owner = None if known is None else known()
        if owner is not None:
            if owner.watch.unchanged():
                return owner
            owner.check()
        elif places not in self._foreign:
            for each in list(self._known.values()):
                if (other := each()) is not None:
                    other.reason()
        known = self._known.get(places)
        return None if known is None else known()

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """Implement the operator: run the kernel for a verified call, else the original."""
        fits = self._fits(tuple(inputs))
        return self._run(inputs, state, fits, pointers((*inputs, *state)))

    def _run(
        self,
        inputs: Sequence[Tensor],
        state: Sequence[Tensor],
        fits: bool,
        places: tuple[int, ...],
    ) -> list[Tensor]:
        """Run the kernel if `fits`, else the original; `places` are the addresses of the inputs and
        of the state."""
        if not fits:
            return self.original.compute(inputs, state)
        args = tuple(inputs) if self._is_flat else self.nesting.arguments(inputs)
        held = places[len(inputs) :]
        if (owner := self._owner(held)) is not None:
            out = owner.run_in_graph(args)
            if out is None:
                return self.original.compute(inputs, state)
        else:
            out = self._foreign_kernel(state, held, "forward")(args)
        return self.outputs.normalised(out, inputs, state, places)

    def _fits(self, inputs: tuple[Tensor, ...]) -> bool:
        if self._fitting.find(inputs):
            return True
        if not self.nesting.fits(inputs):
            return False
        self._fitting.add(inputs, True)
        return True

    def _foreign_kernel(self, state: Sequence[Tensor], places: tuple[int, ...], method: str) -> Run:
        """Return the kernel's function for parameters without a known module; `places` are their
        addresses."""
        with self._lock:
            found = self._foreign.get(places)
            if found is None or any(
                ref() is not tensor for ref, tensor in zip(found[0], state, strict=True)
            ):
                kernel = self._make_kernel()
                bind_tensors(kernel, {n: state[at] for n, at in self.original.names.items()})
                alive = {
                    k: v for k, v in self._foreign.items() if all(r() is not None for r in v[0])
                }
                while len(alive) >= MAX_FOREIGN:
                    alive.pop(next(iter(alive)))
                found = ([weakref.ref(tensor) for tensor in state], kernel)
                self._foreign = {**alive, places: found}
        kernel = found[1]
        call = called(kernel) if method == "forward" else getattr(kernel, method)

        def run(args: tuple[Any, ...]) -> Any:
            with torch.no_grad(), flags_set(self._flags):
                return call(*args)

        return run

    # -- registration

    def _register(self, folder: Path) -> tuple[Any, Any]:
        name = namespace(folder)
        while hasattr(getattr(torch.ops, name), "call"):  # this package, imported twice
            name += "_"
        library = torch.library.Library(name, "FRAGMENT")
        library.define("call(Tensor[] inputs, Tensor[] state) -> Tensor[]")
        library.impl("call", self.run, "CompositeExplicitAutograd")
        library.define("backward(Tensor[] inputs, Tensor[] state, Tensor[] gradients) -> Tensor[]")
        library.impl("backward", self.run_backward, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{name}::backward", self._fake_backward, lib=library)
        self.backward = getattr(torch.ops, name).backward.default
        torch.library.register_fake(f"{name}::call", self.original.compute, lib=library)
        call = getattr(torch.ops, name).call.default
        self._with_gradients = make_autograd_impl(call, Info(self._backward, _save_for_backward))
        library.impl("call", self._call_of_autograd, "Autograd", with_keyset=True)
        return library, call

    def _call_of_autograd(
        self, keyset: Any, inputs: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Implement the operator's Autograd key: run the kernel, and record the backward pass.

        If no gradient is wanted, a cache of earlier calls skips torch's implementation, which would
        take 6 us to find that out. The first such call, and traced or transformed calls, use it.
        """
        tensors = (*inputs, *state)
        plain = not _with_gradients()
        found = self._without_gradients.find_of_any_alignment
        if plain and (fits := found(tensors)) is not None:
            places = tuple(map(_pointer, tensors))
            for place in places[: len(inputs)]:
                if place & MASK:
                    return self.original.compute(inputs, state)
            return self._run(inputs, state, fits, places)
        result: list[Tensor] = self._with_gradients(keyset, inputs, state)
        if plain and not _is_traced(tensors):
            self._without_gradients.add(tensors, self._fits(tuple(inputs)))
        return result

    # -- gradients

    def run_backward(
        self, inputs: Sequence[Tensor], state: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        """Implement the `backward` operator: return one gradient for each of `own.places`.

        A gradient that does not exist is returned as zeros.
        """
        assert self.own is not None
        saved = [*inputs, *state]
        places = pointers(state)
        owner = self._owner(places)
        run = (
            self._foreign_kernel(state, places, "backward")
            if owner is None
            else owner.run_backward_in_graph
        )
        found = self.own_gradients(run, saved, len(inputs), gradients, state)
        if found is None:
            needed = [k in self.own.places for k in range(len(saved))]
            found = self.original.gradients(saved, len(inputs), needed, gradients)
        pairs = ((found[k], saved[k]) for k in self.own.places)
        return [torch.zeros_like(t) if g is None else g.contiguous() for g, t in pairs]

    def _fake_backward(
        self, inputs: Sequence[Tensor], state: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        assert self.own is not None
        saved = [*inputs, *state]
        return [saved[k].new_empty(saved[k].shape) for k in self.own.places]

    def computes(self, needed: Sequence[bool]) -> bool:
        """Return True if the kernel's own backward was verified for all needed gradients."""
        return self.own is not None and not torch.is_grad_enabled() and self.own.covers(needed)

    def own_gradients(
        self,
        backward: Callable[[tuple[Any, ...]], Any] | None,
        saved: Sequence[Tensor],
        count: int,
        gradients: Sequence[Tensor | None],
        state: Sequence[Tensor],
    ) -> list[Tensor | None] | None:
        """Return the gradients of all `saved` tensors from the kernel's own backward.

        The first `count` of `saved` are inputs, the others parameters and buffers. Returns None if
        the kernel cannot be used: hooks for saved tensors may have replaced parameters by copies,
        so that they are not the tensors in `state`, or given inputs of another form.
        """
        if self.own is None or backward is None or torch.is_grad_enabled():
            return None
        if any(a.data_ptr() != b.data_ptr() for a, b in zip(saved[count:], state, strict=True)):
            return None
        if not self.nesting.fits(saved[:count]):
            return None
        cotangents = self.own.cotangents(gradients)
        if cotangents is None:
            return None
        args = self.nesting.arguments([given.detach() for given in saved[:count]])
        return self.own.gradients(lambda *given: backward(given), args, saved, cotangents)

    def _backward(self, ctx: Any, gradients: Sequence[Tensor | None]) -> Any:
        count = ctx.inputs
        if self.computes(ctx.needed) and None not in gradients:
            assert self.own is not None
            saved = ctx.saved_tensors
            flat = self.backward(list(saved[:count]), list(saved[count:]), list(gradients))
            each: list[Tensor | None] = [None] * len(saved)
            for place, gradient in zip(self.own.places, flat, strict=True):
                each[place] = gradient if ctx.needed[place] else None
            return each[:count], each[count:]
        found = self.original.gradients(ctx.saved_tensors, count, ctx.needed, gradients)
        return found[:count], found[count:]


def _is_traced(tensors: Sequence[Tensor]) -> bool:
    """Return True while a dispatch mode or a transform of torch.func intercepts operators."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(map(torch._is_functional_tensor, tensors))
    )


def _save_for_backward(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, state = inputs
    ctx.inputs = len(tensors)
    ctx.needed = [t.requires_grad for t in (*tensors, *state)]
    ctx.save_for_backward(*tensors, *state)
