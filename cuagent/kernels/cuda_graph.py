"""Replay the calls of a module, or of a function of it, as CUDA graphs of torch.cuda.graph.

Each form of call has its own graph. A form is the shapes, strides, dtypes and plain numbers of the
arguments, with autocast and inference mode. A replay copies the arguments to the graph's memory and
returns copies of the results, so that a result stays valid after the next call. The first call of a
form runs the module, then captures it. Graphs are for inference: training, gradients, hooks,
traced or transformed calls, tensors on a CPU and a forward that changes its arguments or its state
run without a graph.

A replay is launched before the checks that the module is unchanged, which can take longer than the
GPU (a network has thousands of tensors and submodules). If a check fails, the results are discarded
and the call runs again. Only the addresses are compared first, so that the graph reads no memory
that was freed.

This file travels with exported packages and imports nothing of cuagent.

Not covered: the Python code of forward runs only while a graph is captured. A later change of an
attribute that is not one of the module's tensors has no effect on a graph.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

MAX_GRAPHS = 8
"""Largest number of graphs of a module, one for each form of call (shapes, dtypes, ... of the
arguments). Each occupies the memory of a call."""
WARM_UP_CALLS = 2
"""Number of calls on the capture's stream before the capture, in which libraries allocate
workspaces."""
CHANGES_OF = operator.attrgetter("_version")
"""Function that returns torch's count of in-place changes of a tensor."""
CHANGES = "forward changes its arguments or its state"
CONSTANTS = (type(None), bool, int, float, str)
"""Types of arguments and results, other than tensors, that a graph stores as constants."""


class NotCapturable(RuntimeError):
    """Error: a call cannot be replayed as a CUDA graph. The message is one line."""


def graph_calls(module: torch.nn.Module, *, required: bool = False) -> None:
    """Replay the calls of `module` as CUDA graphs, in place; a compiled module stays compiled.

    A call that cannot be captured runs without a graph, or raises NotCapturable if `required`.
    Copies of the module do not use graphs; neither does the module after pickling.
    """
    call = getattr(module, "_compiled_call_impl", None) or module._call_impl
    module._compiled_call_impl = _GraphedCalls(module, call, required)


def replay(
    module: torch.nn.Module,
    compute: Callable[..., Any],
    arguments: tuple[Any, ...],
    prepare: Callable[[], tuple[Any, ...]] | None = None,
    cache: str = "",
) -> Any:
    """Return `compute(module, *arguments, *prepare())`, replayed as a CUDA graph where possible.

    A graph reads the prepared values in place, so their tensors must not change. It is replayed as
    long as `prepare` returns the same tuple. The first call with another tuple runs without a
    graph, because `prepare` may compute the values anew in each call. `cache` names the attribute
    of the module in which `prepare` keeps (watched parameters, values); a replay then looks there
    itself.
    """
    if torch.compiler.is_compiling():
        return compute(module, *arguments, *(prepare() if prepare else ()))
    held: _Held | None = module.__dict__.get(HELD)
    if held is not None and not held.is_of(module, compute):
        held = None
    replayed = held.calls.replayed(arguments, {}) if held is not None else None
    if held is not None and replayed is not None and held.is_prepared(module.__dict__.get(cache)):
        return replayed[0]
    values = prepare() if prepare else ()
    if held is None or held.values is not values:
        module.__dict__[HELD] = _Held(module, compute, values)
        return compute(module, *arguments, *values)
    return held.calls.without_graph(arguments, {}) if replayed is None else replayed[0]


HELD = "_cuda_graphs_of_replay"
"""Name of the attribute of a module that holds its graphs for `replay`."""


class _Held:
    """The graphs of a module for `replay`, with the function and the values that they contain.

    Only `_covered` changes, as one value, because other threads may call the module.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        compute: Callable[..., Any] | None,
        values: tuple[Any, ...],
    ) -> None:
        self._module, self._compute, self.values = module, compute, values
        self._covered: tuple[Any, bool] = None, False
        if module is not None and compute is not None:
            self.calls = _GraphedCalls(module, lambda *x: compute(module, *x, *values), False)

    def is_of(self, module: torch.nn.Module, compute: Callable[..., Any]) -> bool:
        """Return True if the graphs are those of this module and function. A shallow copy of a
        module has the attributes of the original."""
        return self._module is module and self._compute is compute

    def is_prepared(self, known: Any) -> bool:
        """Return True if the values are those in `known` (watched parameters, values) and no
        parameter was changed in place. A graph's `State` has compared everything else."""
        if known is None or known[0] is None or known[1] is not self.values:
            return False
        watched, covered = self._covered
        if watched is not known[0]:
            covered = self._module is not None and is_covered(known[0], self._module)
            self._covered = known[0], covered
        return covered and list(map(CHANGES_OF, known[0].tensors)) == known[0].changes

    def __deepcopy__(self, memo: object) -> _Held:
        return _Held(None, None, ())

    def __reduce__(self) -> Any:
        return _Held, (None, None, ())


class _GraphedCalls:
    """Replacement for a module's `__call__`.

    For each form of call (shapes, dtypes, ... of the arguments) it stores the CUDA graph, or the
    reason why there is none.
    """

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any], required: bool) -> None:
        self._module, self._call, self._required = module, call, required
        self._graphs: dict[Any, _Graph | str] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # a graph of the caller that holds this module
            return self._call(*arguments, **named)
        replayed = self.replayed(arguments, named)
        return self.without_graph(arguments, named) if replayed is None else replayed[0]

    def replayed(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any] | None:
        """Return a 1-tuple with the result of a replay, or None if no graph serves the call."""
        if not self._graphs:
            return None
        leaves, spec = flattened(arguments, named)
        if refusal(self._module, leaves):
            return None
        with self._lock:
            graph = self._graphs.get(form_of(leaves, spec))
            if not isinstance(graph, _Graph) or not graph.state.has_memory():
                return None
            result = graph.replay(leaves)
        return (result,) if graph.state.is_current() else None

    def without_graph(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a call that no graph serves. The first call of a form is captured."""
        leaves, spec = flattened(arguments, named)
        if reason := refusal(self._module, leaves):
            return self._plain(reason, arguments, named)
        with self._lock:
            form = form_of(leaves, spec)
            graph = self._graphs.get(form)
            if not isinstance(graph, str) and (
                form in self._graphs or len(self._graphs) < MAX_GRAPHS
            ):
                output, graph = self._first_call(leaves, spec)
                self._graphs[form] = graph
                if isinstance(graph, str) and self._required:
                    raise NotCapturable(graph)
                return output
        return self._plain(graph or f"more than {MAX_GRAPHS} forms of calls", arguments, named)

    def _plain(self, reason: Any, arguments: Any, named: Any) -> Any:
        if self._required:
            raise NotCapturable(f"no CUDA graph: {reason}")
        return self._call(*arguments, **named)

    def _first_call(self, leaves: Sequence[Any], spec: Any) -> tuple[Any, _Graph | str]:
        """Run the first call with arguments of one form (shapes, dtypes, ...), and capture it.

        Returns the result, and the graph or the reason why there is none.
        """
        state = State(self._module)
        seen = [*(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), *state.tensors]
        before = [_version(tensor) for tensor in seen]
        arguments, named = _unflattened(leaves, spec)
        output = self._call(*arguments, **named)
        if [_version(tensor) for tensor in seen] != before:
            return output, f"no CUDA graph: {CHANGES}"
        if any(tensor.is_inference() for tensor in state.tensors):
            return output, "no CUDA graph: changes of inference tensors are not visible"
        results, _ = pytree.tree_flatten(output)
        if reason := _hooks(self._module) or _unfit_result(results, seen):
            return output, f"no CUDA graph: {reason}"
        try:
            return output, _captured(self._call, leaves, spec, state)
        except NotCapturable as error:
            return output, f"no CUDA graph: {error}"
        except RuntimeError as error:
            return output, f"the capture failed: {str(error).splitlines()[0][:200]}"


def refusal(module: torch.nn.Module, leaves: Sequence[Any]) -> str:
    """Return the reason why a call with these arguments must run without a graph; "" if it may use
    one."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if module.training:
        return "the module is in training mode"
    if not tensors or any(not tensor.is_cuda for tensor in tensors):
        return "an argument is not on a GPU"
    if len({tensor.device for tensor in tensors}) > 1:
        return "the arguments are on several GPUs"
    if any(not isinstance(leaf, (torch.Tensor, *CONSTANTS)) for leaf in leaves):
        return "an argument is neither a tensor nor a constant"
    if is_traced(tensors):
        return "the call is traced or transformed"
    if torch.is_grad_enabled():
        wanted = (tensor.requires_grad for tensor in (*tensors, *module.parameters()))
        if any(wanted):
            return "gradients are enabled"
    if torch.cuda.is_current_stream_capturing():
        return "the stream is being captured"
    return ""


def is_traced(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if a dispatch mode, a tensor subclass, a transform of torch.func or forward-mode
    differentiation needs to see the operators, which a replay does not call."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
    )


def flattened(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """Return the leaves of a call's arguments and their structure; None stands for leaves that are
    all positional, because torch's pytree takes 10 us."""
    if not named and all(isinstance(each, (torch.Tensor, *CONSTANTS)) for each in arguments):
        return arguments, None
    return pytree.tree_flatten((arguments, named))


def _unflattened(leaves: Sequence[Any], spec: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if spec is None:
        return tuple(leaves), {}
    arguments, named = pytree.tree_unflatten(leaves, spec)
    return arguments, named


def form_of(leaves: Sequence[Any], spec: Any) -> Any:
    """Return the key of the graph for a call.

    The key has the shapes, strides and dtypes of the tensors, the other arguments by value, and
    torch's autocast and inference modes.
    """
    forms = tuple(
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf)
        for leaf in leaves
    )
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return spec and str(spec), forms, autocast, torch.is_inference_mode_enabled()


def is_covered(watched: Any, module: torch.nn.Module) -> bool:
    """Return True if `State` compares all tensors that `watched` lists (`sources.Watched`).

    It does not compare tensors that are plain attributes.
    """
    parts = list(module.modules())
    holders = {id(h) for p in parts for h in (p._parameters, p._buffers, p._modules)}
    return all(id(holder) in holders for holder in watched.holders)


class State:
    """Parameters, buffers and submodules of a module when a graph was captured, whose addresses the
    graph has recorded.

    The comparisons are loops of Python's own C functions: about 0.1 us a tensor.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = list(module.modules())
        self._holders: list[dict[str, Any]] = [
            holder
            for part in self._modules
            for holder in (part._parameters, part._buffers, part._modules)
            if holder
        ]
        self._held = list(chain.from_iterable(map(dict.values, self._holders)))
        self.tensors = [each for each in self._held if isinstance(each, torch.Tensor)]
        self._addresses = list(map(torch.Tensor.data_ptr, self.tensors))
        self._places = list(range(len(self.tensors)))
        self._compared = self._comparison()

    def _comparison(self) -> Callable[..., bool] | None:
        """Return the function of torch's own CUDA graphs that compares addresses, in a few
        nanoseconds each; None in a torch that has no such function."""
        function: Callable[..., bool] | None
        function = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
        try:
            works = function is not None and function(self.tensors, self._addresses, self._places)
        except (TypeError, RuntimeError):
            works = False
        return function if works else None

    def has_memory(self) -> bool:
        """Return True if each tensor is still at its address, so that a graph may read it."""
        if self._compared is not None:
            return self._compared(self.tensors, self._addresses, self._places)
        return list(map(torch.Tensor.data_ptr, self.tensors)) == self._addresses

    def is_current(self) -> bool:
        """Return True if the module has the same tensors and submodules."""
        now = chain.from_iterable(map(dict.values, self._holders))
        whole = sum(map(len, self._holders)) == len(self._held)
        return whole and all(map(operator.is_, now, self._held))


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    arguments: list[Any]
    results: list[Any]
    spec: Any
    """Structure of the results; None for a single tensor."""
    state: State
    device: torch.device
    done: torch.cuda.Event
    """Event that is recorded after the latest replay, or after the capture. The next replay waits
    for the event, because it may run on another stream and uses the same buffers."""

    def replay(self, leaves: Sequence[Any]) -> Any:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self.done)
        with torch.no_grad():
            for own, given in zip(self.arguments, leaves, strict=True):
                if isinstance(own, torch.Tensor):
                    own.copy_(given)
            self.graph.replay()
            results = [r.clone() if isinstance(r, torch.Tensor) else r for r in self.results]
        self.done.record(stream)
        return results[0] if self.spec is None else pytree.tree_unflatten(results, self.spec)


def _captured(call: Callable[..., Any], leaves: Sequence[Any], spec: Any, state: State) -> _Graph:
    """Capture one call on copies of its arguments and return the graph. Raises RuntimeError."""
    # Only tensors that are created outside of inference mode count their changes.
    with torch.inference_mode(False), torch.no_grad():
        own = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    pairs = [(a, b) for a, b in zip(own, leaves, strict=True) if isinstance(a, torch.Tensor)]
    if any(a.stride() != b.stride() for a, b in pairs):
        raise NotCapturable("an argument has a layout that a copy does not keep")
    arguments, named = _unflattened(own, spec)
    device = pairs[0][0].device
    with torch.cuda.device(device), casts_not_cached():
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            before = [_version(tensor) for tensor, _ in pairs]
            for _ in range(WARM_UP_CALLS):
                call(*arguments, **named)
        current.wait_stream(side)
        if [_version(tensor) for tensor, _ in pairs] != before:
            raise NotCapturable(CHANGES)
        graph = torch.cuda.CUDAGraph()
        try:
            # Calls of other threads to CUDA must not end the capture.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                output = call(*arguments, **named)
        except BaseException:
            _end_capture_of_generator(side)
            raise
        done = torch.cuda.Event()
        done.record(current)
    if isinstance(output, torch.Tensor):
        return _Graph(graph, own, [output], None, state, device, done)
    return _Graph(graph, own, *pytree.tree_flatten(output), state, device, done)


@contextmanager
def casts_not_cached() -> Iterator[None]:
    """Context in which autocast casts the weights anew in each call.

    It frees cached casts at its end, and they do not follow changes of the weights, so a graph must
    not read them.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _end_capture_of_generator(stream: torch.cuda.Stream) -> None:
    """Make torch's random numbers usable again after a capture that failed.

    torch ends the capture of its generator only after a capture that succeeded; until then each
    draw on the GPU raises "Offset increment outside graph capture" (torch 2.11).
    """
    number = torch.zeros(1, device=stream.device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
        number.add_(1)


def _unfit_result(results: Sequence[Any], seen: Sequence[torch.Tensor]) -> str:
    """Return the reason why a graph cannot return copies of these results; "" if it can."""
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    if any(not isinstance(result, (torch.Tensor, *CONSTANTS)) for result in results):
        return "a result is neither a tensor nor a constant"
    if any(not tensor.is_cuda for tensor in tensors):
        return "a result is not on a GPU"
    given, made = _memories(seen), _memories(tensors)
    if set(given) & set(made):
        return "a result shares the memory of an argument or of the state"
    if len(set(made)) < len(made):
        return "two results share memory"
    if any(tensor.clone().stride() != tensor.stride() for tensor in tensors):
        return "a result has a layout that a copy does not keep"
    return ""


def _memories(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [t.untyped_storage().data_ptr() for t in tensors if t.numel()]


def _hooks(module: torch.nn.Module) -> str:
    """Return a reason to run without a graph if a submodule has forward hooks, else "".

    A replay would not call the hooks.
    """
    found = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    return "the module has hooks" if found else ""


def _version(tensor: torch.Tensor) -> int:
    """Return torch's counter of in-place changes of a tensor; 0 for an inference tensor, which has
    none."""
    return 0 if tensor.is_inference() else tensor._version
