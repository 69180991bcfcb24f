"""Run captured graphs, and compare their results with those of the module."""

from __future__ import annotations

import torch


def assert_equal_results(captured, model, inputs) -> None:
    with torch.no_grad():
        expected = model(*inputs)
        got = results_of(captured, model, inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(got, tuple(expected))


def results_of(captured, model, inputs) -> tuple[torch.Tensor, ...]:
    """Run a captured graph node by node; return its outputs."""
    state, given, values = model.state_dict(), iter(inputs), {}
    for node in captured.nodes:
        if node.op == "placeholder":
            name = captured.parameters.get(node.name)
            values[node] = next(given) if name is None else state[name]
        elif node.op == "call_function":
            args, options = torch.fx.map_arg((node.args, node.kwargs), values.get)
            values[node] = node.target(*args, **options)
    return tuple(values[node] for node in captured.outputs)
