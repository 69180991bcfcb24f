"""Register a verified kernel as a torch operator, so that graphs and autograd can use it.

Travels with an exported or applied kernel, next to `replace.py`. Each package registers one
operator in its own namespace, `call(Tensor[] inputs, Tensor[] state) -> Tensor[]`. It runs the
kernel for a verified call and the original for every other, so its fake implementation and its
gradients are those of the original. torch.compile and torch.export keep it as one node.

Gradients come from the kernel's own backward pass, if one was verified (`gradients.py`). Otherwise
the backward pass runs the original again on the saved inputs and parameters, and differentiates it.
Second derivatives always use the original.
Not covered: vmap and forward-mode differentiation of the operator, modules without any tensor.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._library.autograd import Info, make_autograd_impl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .flags import flags_set
from .forms import Form, form_of
from .gradients import OwnBackward
from .machine import namespace
from .reads import Reads, recorded_reads
from .seen import Seen

Run = Callable[[tuple[Any, ...]], Any]

CALLS = ("__call__", "_call_impl", "_wrapped_call_impl")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Attributes of a module with hooks that its call runs around forward."""
MAX_FOREIGN = 256
"""Largest number of kernel modules that are cached for parameters without a known module, such as
those of a loaded torch.export program."""


class Unsuitable(Exception):
    """The module or call cannot use the kernel. The message is one line."""


class Boundary:
    """The torch operators for one verified shape of a package, and the original module.

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
        that entry of `verified.json`, `flags` are torch's flags during the verification."""
        self._flags = flags or {}
        self.original = original.eval()
        self.names, self.unique = state_names(original)
        self.forms = [form_of(tensor) for tensor in self.unique]
        self._forms, self._flat = forms, _tensor_forms(forms)
        self._is_flat = all(form.__class__ is Form for form in forms)
        self._make_kernel = make_kernel
        self._lock = lock or threading.RLock()  # packages with several shapes share the original
        self._known: dict[tuple[int, ...], weakref.ref[Any]] = {}
        self._foreign: dict[tuple[int, ...], tuple[list[weakref.ref[Tensor]], nn.Module]] = {}
        self._fitting, self._without_gradients = Seen(), Seen()
        self.read: Reads | None = None
        """Attributes of the original that a verified call reads; None if unknown."""
        self.own: OwnBackward | None = None
        """The kernel's own backward; None if none was verified."""
        if backward is not None:
            self.own = OwnBackward(backward, self.names, len(self._flat))
        self.outputs = self._output_forms()
        self._library, self.call = self._register(folder)

    # -- arguments

    def tensors(self, args: tuple[Any, ...]) -> list[Tensor]:
        """Return the tensors in the nested arguments of a verified call, as a flat list."""
        if self._is_flat:
            return list(args)
        found: list[Tensor] = []
        _collect(args, self._forms, found)
        return found

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the nested arguments of a verified call that contain these tensors, in order."""
        if self._is_flat:
            return tuple(tensors)
        given = iter(tensors)
        return tuple(_filled(form, given) for form in self._forms)

    def result(self, flat: Sequence[Tensor]) -> Any:
        """Return the operator's flat outputs in the structure of the original's output."""
        spec = self.outputs[1]
        if spec is None:
            return flat[0]
        return pytree.tree_unflatten(list(flat), spec)

    # -- the original

    def compute(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """Run the original with `state` as its parameters and buffers (as in `unique`).

        An output that shares memory with an input is copied.
        """
        given = {name: state[at] for name, at in self.names.items()}
        with self._lock:
            out = self._called(given, inputs)
        return _unaliased(pytree.tree_leaves(out), [*inputs, *state])

    def _output_forms(self) -> tuple[list[tuple[Any, ...]], Any]:
        """Return (shape, stride, dtype) of each output of a verified call, and their structure.

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
                        for form in _tensor_forms(self._forms)
                    ]
                    given: dict[str, Tensor] = {n: fakes[at] for n, at in self.names.items()}
                    with recorded_reads(self.original) as read:
                        out = self._called(given, inputs)
                        self.read = read if self._reads_with_gradients(given, inputs) else None
                    leaves, spec = pytree.tree_flatten(out)
                    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
                        raise Unsuitable("its output holds other values than tensors")
                    leaves = _unaliased(leaves, [*inputs, *fakes])
            except Unsuitable:
                raise
            except Exception as error:  # the user's module on fake tensors may raise any type
                line = str(error).strip().partition("\n")[0]
                raise Unsuitable(
                    f"the original does not run without data ({line[:120]})"
                ) from error
        forms = [(tuple(t.shape), t.stride(), t.dtype) for t in leaves]
        return forms, None if isinstance(out, Tensor) else spec

    def _called(self, given: dict[str, Tensor], inputs: Sequence[Tensor]) -> Any:
        return torch.func.functional_call(self.original, given, self.arguments(inputs))

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

    # -- kernels

    def know(self, state: Sequence[Tensor], owner: Any) -> None:
        """Remember the owner of these parameters. For calls with them, the operator runs
        `owner.run_in_graph(args)`."""
        self._known = {k: v for k, v in self._known.items() if v() is not None}
        self._known[_pointers(state)] = weakref.ref(owner)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor]) -> list[Tensor]:
        """Implement the operator: run the kernel for a verified call, else the original."""
        return self._run(inputs, state, self._fits(tuple(inputs)))

    def _run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], fits: bool) -> list[Tensor]:
        run = self._kernel_for(state) if fits else None
        out = None if run is None else run(self.arguments(inputs))
        return self.compute(inputs, state) if out is None else self.normalised(out, inputs, state)

    def _fits(self, inputs: tuple[Tensor, ...]) -> bool:
        if self._fitting.find(inputs):
            return True
        if len(inputs) != len(self._flat) or not all(
            form.fits(tensor, tensor.device)
            for form, tensor in zip(self._flat, inputs, strict=True)
        ):
            return False
        self._fitting.add(inputs, True)
        return True

    def normalised(
        self, out: Any, inputs: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the kernel's outputs as a flat list, with the original's strides.

        An output that shares memory with an input or parameter is copied.
        """
        if out.__class__ is Tensor and len(self.outputs[0]) == 1:
            shape, stride, dtype = self.outputs[0][0]
            if out.shape == shape and out.dtype is dtype and out.stride() == stride:
                storage = out.untyped_storage()._cdata
                for tensor in (*inputs, *state):
                    if tensor.untyped_storage()._cdata == storage:
                        return [out.clone()]
                return [out]
        leaves = [out] if out.__class__ is Tensor else pytree.tree_leaves(out)
        leaves = _unaliased(leaves, [*inputs, *state])
        if len(leaves) != len(self.outputs[0]):
            raise RuntimeError(
                f"the kernel returned {len(leaves)} tensors; the original returns "
                f"{len(self.outputs[0])}"
            )
        return [_laid_out(*pair) for pair in zip(leaves, self.outputs[0], strict=True)]

    def _kernel_for(
        self, state: Sequence[Tensor], run_in_graph: str = "run_in_graph", method: str = "forward"
    ) -> Run | None:
        pointers = _pointers(state)
        if (known := self._known.get(pointers)) is not None and (owner := known()) is not None:
            found_run: Run = getattr(owner, run_in_graph)
            return found_run
        with self._lock:
            found = self._foreign.get(pointers)
            if found is None or any(
                ref() is not tensor for ref, tensor in zip(found[0], state, strict=True)
            ):
                kernel = self._make_kernel()
                bind_tensors(kernel, {name: state[at] for name, at in self.names.items()})
                alive = {
                    k: v for k, v in self._foreign.items() if all(r() is not None for r in v[0])
                }
                while len(alive) >= MAX_FOREIGN:
                    alive.pop(next(iter(alive)))
                found = ([weakref.ref(tensor) for tensor in state], kernel)
                self._foreign = {**alive, pointers: found}
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
        torch.library.register_fake(f"{name}::call", self.compute, lib=library)
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
        plain = not torch.is_grad_enabled()
        if plain and (fits := self._without_gradients.find(tensors)) is not None:
            return self._run(inputs, state, fits)
        result: list[Tensor] = self._with_gradients(keyset, inputs, state)
        if plain and not _is_traced(tensors):
            self._without_gradients.add(tensors, self._fits(tuple(inputs)))
        return result

    def run_backward(
        self, inputs: Sequence[Tensor], state: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        """Implement the `backward` operator: return one gradient for each of `own.places`.

        A gradient that does not exist is returned as zeros.
        """
        assert self.own is not None
        saved = [*inputs, *state]
        run = self._kernel_for(state, "run_backward_in_graph", "backward")
        found = self.own_gradients(run, saved, len(inputs), gradients, state)
        if found is None:
            needed = [k in self.own.places for k in range(len(saved))]
            found = self.gradients(saved, len(inputs), needed, gradients)
        pairs = ((found[k], saved[k]) for k in self.own.places)
        return [torch.zeros_like(t) if g is None else g.contiguous() for g, t in pairs]

    def _fake_backward(
        self, inputs: Sequence[Tensor], state: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        assert self.own is not None
        saved = [*inputs, *state]
        return [saved[k].new_empty(saved[k].shape) for k in self.own.places]

    def _computes(self, needed: Sequence[bool]) -> bool:
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
        if not all(
            form.fits(given, given.device)
            for form, given in zip(self._flat, saved[:count], strict=True)
        ):
            return None
        cotangents = self.own.cotangents(gradients)
        if cotangents is None:
            return None
        args = self.arguments([given.detach() for given in saved[:count]])
        return self.own.gradients(lambda *given: backward(given), args, saved, cotangents)

    def _backward(self, ctx: Any, gradients: Sequence[Tensor | None]) -> Any:
        count = ctx.inputs
        if self._computes(ctx.needed) and None not in gradients:
            assert self.own is not None
            saved = ctx.saved_tensors
            flat = self.backward(list(saved[:count]), list(saved[count:]), list(gradients))
            each: list[Tensor | None] = [None] * len(saved)
            for place, gradient in zip(self.own.places, flat, strict=True):
                each[place] = gradient if ctx.needed[place] else None
            return each[:count], each[count:]
        found = self.gradients(ctx.saved_tensors, count, ctx.needed, gradients)
        return found[:count], found[count:]

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


class Recomputed(torch.autograd.Function):
    """Autograd function of a kernel for eager calls; its backward is the kernel's own if that was
    verified, else the original's."""

    @staticmethod
    def forward(
        ctx: Any,
        boundary: Boundary,
        run: Run,
        backward: Run | None,
        args: tuple[Any, ...],
        count: int,
        *tensors: Tensor,
    ) -> Any:
        ctx.boundary, ctx.inputs, ctx.own = boundary, count, backward
        ctx.state = tensors[count:] if backward is not None else ()
        ctx.needed = ctx.needs_input_grad[5:]
        ctx.save_for_backward(*tensors)
        return tuple(boundary.normalised(run(args), tensors[:count], tensors[count:]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        boundary, saved = ctx.boundary, ctx.saved_tensors
        found = None
        if boundary._computes(ctx.needed):
            found = boundary.own_gradients(ctx.own, saved, ctx.inputs, gradients, ctx.state)
        if found is None:
            found = boundary.gradients(saved, ctx.inputs, ctx.needed, gradients)
        else:
            found = [g if need else None for g, need in zip(found, ctx.needed, strict=True)]
        return None, None, None, None, None, *found


def called(kernel: nn.Module) -> Callable[..., Any]:
    """Return the function to call for the kernel's module.

    This is its forward, which saves a microsecond. It is the module itself if the module has hooks
    or its class overrides `__call__`.
    """
    own = any(getattr(type(kernel), n) is not getattr(nn.Module, n) for n in CALLS)
    forward: Callable[..., Any] = kernel.forward
    return kernel if own or any(kernel.__dict__[hooks] for hooks in HOOKS) else forward


def state_names(module: nn.Module) -> tuple[dict[str, int], list[Tensor]]:
    """Return ({name: index into the list}, list of parameters and buffers).

    Names that share one tensor have the same index.
    """
    names: dict[str, int] = {}
    unique: list[Tensor] = []
    at: dict[int, int] = {}
    for name, tensor in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        if id(tensor) not in at:
            at[id(tensor)] = len(unique)
            unique.append(tensor)
        names[name] = at[id(tensor)]
    return names, unique


def bind_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Replace parameters and buffers of `module` by detached tensors, given by name."""
    for name, tensor in tensors.items():
        path, _, key = name.rpartition(".")
        owner = module.get_submodule(path)
        if key in owner._parameters:
            owner._parameters[key] = nn.Parameter(tensor.detach(), requires_grad=False)
        else:
            owner._buffers[key] = tensor.detach()


def _pointers(state: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(_pointer, state))


_pointer = Tensor.data_ptr


def _tensor_forms(form: Any) -> list[Form]:
    if form.__class__ is Form:
        return [form]
    items = form.values() if isinstance(form, dict) else form
    if not isinstance(form, (dict, list, tuple)):
        return []
    return [found for item in items for found in _tensor_forms(item)]


def _collect(value: Any, form: Any, found: list[Tensor]) -> None:
    if form.__class__ is Form:
        found.append(value)
    elif isinstance(form, (list, tuple)):
        for item, inner in zip(value, form, strict=True):
            _collect(item, inner, found)
    elif isinstance(form, dict):
        for key, inner in form.items():
            _collect(value[key], inner, found)


def _filled(form: Any, tensors: Any) -> Any:
    if form.__class__ is Form:
        return next(tensors)
    if isinstance(form, dict):
        return {key: _filled(item, tensors) for key, item in form.items()}
    if isinstance(form, (list, tuple)):
        return type(form)(_filled(item, tensors) for item in form)
    return form


def _unaliased(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs; copy each that shares memory with `others` or an earlier output."""
    seen = {tensor.untyped_storage()._cdata for tensor in others}
    result = []
    for tensor in outputs:
        storage = tensor.untyped_storage()._cdata
        result.append(tensor.clone() if storage in seen else tensor)
        seen.add(storage)
    return result


def _laid_out(tensor: Tensor, form: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype = form
    if tensor.shape != shape or tensor.dtype is not dtype:
        raise RuntimeError(
            f"the kernel returned {tensor.dtype} {list(tensor.shape)}; the original returns "
            f"{dtype} {list(shape)}"
        )
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device).copy_(tensor)
