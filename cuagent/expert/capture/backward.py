"""Capture the gradients of a module as a graph of torch operators on its inputs.

The graph is traced through torch's own autograd on fake tensors. Operators with a lowering rule
stay whole; torch decomposes all others into operators with one. The forward pass stores no values:
the graph recomputes those that the gradients need. Not covered: modules whose gradients torch can
only compute with real values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from cuagent.expert.capture.export import Captured, CaptureError
from cuagent.task.step import Step
from cuagent.task.tree import count, flatten, unflatten

SAME = {"detach", "alias", "lift_fresh", "lift_fresh_copy"}
"""Operators that return their argument's elements unchanged."""


def capture_backward(model: Any, step: Step, arguments: Sequence[Any]) -> Captured:
    """Capture the gradients of a training step. Raises CaptureError.

    `arguments` are those of forward, then the gradients of its outputs.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors, spec = flatten(list(arguments), "inputs")
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    form = {**spec, "items": spec["items"][: step.arguments]}
    given = count(form)

    def gradients(values: list[Any], inputs: list[Any]) -> list[Any]:
        with torch.enable_grad():
            held = {
                name: value.detach().requires_grad_(name in step.parameters)
                for name, value in zip(state, values, strict=True)
            }
            leaves = [
                x.detach().requires_grad_() if k in step.inputs else x
                for k, x in enumerate(inputs[:given])
            ]
            result = torch.func.functional_call(model, held, tuple(unflatten(leaves, form)))
            outputs, _ = flatten(result, "output")
            wanted = [leaves[k] for k in step.inputs] + [held[n] for n in step.parameters]
            found = torch.autograd.grad([outputs[k] for k in step.outputs], wanted, inputs[given:])
        return [x.detach() for x in found]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given_all = [t.detach() for t in state.values()], tensors
            table = _table()
            traced = make_fx(gradients, decomposition_table=table, tracing_mode="fake")(*given_all)
            if any(map(_changes_tensors, traced.graph.nodes)):
                pure = torch.func.functionalize(traced)
                traced = make_fx(pure, decomposition_table=table, tracing_mode="fake")(*given_all)
    except Exception as error:  # tracing runs code of the user and raises many types
        line = next(filter(None, str(error).splitlines()), "")
        raise CaptureError(
            f"tracing the gradients: {type(error).__name__}: {line[:200]}"
        ) from error
    expressions = _expressions(spec, [f"argument_{k}" for k in range(len(arguments))])
    return _captured(traced, list(state), expressions, len(arguments))


def _expressions(spec: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return a Python expression for each tensor in `spec`, such as `argument_0[1]`.

    `names` are the names of the arguments.
    """
    found: list[str] = []

    def visit(item: dict[str, Any], text: str) -> None:
        if item["kind"] == "tensor":
            found.append(text)
        for k, inner in enumerate(item.get("items", ())):
            visit(inner, f"{text}[{k}]")

    for item, name in zip(spec["items"], names, strict=True):
        visit(item, name)
    return found


def _captured(traced: Any, state: list[str], inputs: list[str], arguments: int) -> Captured:
    """Return the traced graph without operators that return their argument.

    `state` are the parameters' and buffers' names, `inputs` the expressions of the input tensors,
    both in the order of the placeholders; `arguments` is the number of arguments.
    """
    from cuagent.expert.graph.lowering import operator_name

    graph = traced.graph
    constants = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            tensor = getattr(traced, node.target)
            with graph.inserting_before(next(iter(graph.nodes))):
                held = graph.placeholder(node.name)
            held.meta["val"] = node.meta.get("val", tensor)
            node.replace_all_uses_with(held)
            graph.erase_node(node)
            constants[held.name] = tensor.detach()
    for node in list(graph.nodes):
        if node.op == "call_function" and (operator_name(node) in SAME or _is_first_power(node)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    places = [n for n in graph.nodes if n.op == "placeholder" and n.name not in constants]
    graph.eliminate_dead_code()
    names = [n.name for n in places]
    *_, last = graph.nodes
    outputs = tuple(last.args[0])
    template = "(" + ", ".join(f"{{{k}}}" for k in range(len(outputs))) + ",)"
    return Captured(
        tuple(graph.nodes),
        dict(zip(names, state, strict=False)),
        dict(zip(names[len(state) :], inputs, strict=True)),
        {},
        constants,
        outputs,
        template,
        tuple(f"argument_{k}" for k in range(arguments)),
    )


def _changes_tensors(node: Any) -> bool:
    """Return True for an operator that changes a tensor in place, such as a value that the
    candidate computes only once."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _is_first_power(node: Any) -> bool:
    """Return True for `x ** 1`, which the gradient of a square contains."""
    return str(node.target) == "aten.pow.Tensor_Scalar" and node.args[1] == 1


def _table() -> dict[Any, Any]:
    """Return the operator decompositions for tracing a backward: torch's, and ours of norms and
    losses.
    """
    import torch

    aten = torch.ops.aten
    found: dict[Any, Any] = dict(torch._decomp.core_aten_decompositions())
    # torch's decomposition returns the weights where its gradient expects their logsumexp.
    found.pop(aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    found |= {
        aten.native_layer_norm.default: _layer_norm,
        aten.native_group_norm.default: _group_norm,
        aten.nll_loss_forward.default: _nll_loss,
        aten.nll_loss_backward.default: _nll_loss_backward,
        aten.select_backward.default: _select_backward,
    }
    return found


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    import torch

    dims = list(range(-len(shape), 0))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    scale = ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    y = centred * scale
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), mean, scale


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    import torch

    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    rows = wide.reshape(n, groups, c // groups * size)
    mean = rows.mean([-1], keepdim=True)
    centred = rows - mean
    scale = ((centred * centred).mean([-1], keepdim=True) + eps).rsqrt()
    y = (centred * scale).reshape(x.shape)
    channels = [1, c] + [1] * (x.dim() - 2)
    y = y if weight is None else y * weight.reshape(channels)
    y = y if bias is None else y + bias.reshape(channels)
    return y.to(x.dtype), mean.reshape(n, groups), scale.reshape(n, groups)


def _counted(target: Any, ignored: int) -> Any:
    return target != ignored


def _nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    if x.dim() != 2:
        return NotImplemented
    counts, classes = _counted(target, ignored), target.clamp(min=0)
    zero = x.new_zeros(())
    picked = -x.gather(1, classes.unsqueeze(1)).squeeze(1)
    share = counts.to(x.dtype)
    if weight is not None:
        share = weight.gather(0, classes).where(counts, zero)
        picked = picked * share
    picked = picked.where(counts, zero)
    total = share.sum()
    if reduction == 0:
        return picked, x.new_zeros(())
    return (picked.sum() / total if reduction == 1 else picked.sum()), total


def _nll_loss_backward(
    gradient: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
) -> Any:
    import torch

    if x.dim() != 2:
        return NotImplemented
    share = gradient / total if reduction == 1 else gradient
    share = share.unsqueeze(-1) if reduction == 0 else share
    columns = torch.arange(x.shape[1], device=x.device)
    chosen = (columns == target.unsqueeze(1)) & _counted(target, ignored).unsqueeze(1)
    share = share if weight is None else share * weight
    return torch.where(chosen, -share, share.new_zeros(()))


def _select_backward(gradient: Any, sizes: Any, dim: int, index: int) -> Any:
    """Return the gradient of `x.select(dim, index)`; torch compares places even where there is only
    one."""
    import torch

    if sizes[dim] == 1:
        return gradient.unsqueeze(dim if dim >= 0 else dim + len(sizes))
    return torch._decomp.decompositions.select_backward(gradient, sizes, dim, index)
