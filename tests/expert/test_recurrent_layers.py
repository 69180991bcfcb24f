"""A recurrent layer is captured as one operator, without running its steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._decomp import decomposition_table, decompositions

from cuagent.expert.capture.export import capture
from cuagent.expert.capture.recurrent_layers import whole_recurrent_layers

LAYERS = {
    "gru": nn.GRU(8, 16, 2, bidirectional=True),
    "lstm": nn.LSTM(8, 16, 2, batch_first=True),
    "rnn_tanh": nn.RNN(8, 16, batch_first=True),
    "rnn_relu": nn.RNN(8, 16, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_one_operator_and_its_steps_do_not_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(*_: object) -> None:
        raise AssertionError("the steps run")

    layer, inputs = LAYERS[name].eval(), torch.randn(5, 3, 8)
    outputs = [layer(inputs)[0], *torch.utils._pytree.tree_leaves(layer(inputs)[1])]
    monkeypatch.setattr(decompositions, "_rnn_helper", steps)
    captured = capture(layer, [inputs])
    (node,) = (node for node in captured.nodes if name in str(node.target))
    assert [value.shape for value in node.meta["val"]] == [value.shape for value in outputs]
    assert [value.dtype for value in node.meta["val"]] == [value.dtype for value in outputs]
    assert [value.stride() for value in node.meta["val"]] == [x.stride() for x in outputs]


def test_other_tensors_are_computed_as_usual_and_torch_is_restored() -> None:
    layer, inputs = LAYERS["gru"].eval(), torch.randn(5, 3, 8)
    operator = torch.ops.aten.gru.input
    before = dict(operator.py_kernels), decomposition_table[operator]
    with torch.no_grad():
        expected = layer(inputs)[0]
        with whole_recurrent_layers():
            assert torch.equal(layer(inputs)[0], expected)
            assert operator.py_kernels != before[0]
        weights = [w for w in layer._flat_weights if w is not None]
        state = torch.zeros(4, 3, 16)
        given = (inputs, state, weights, True, 2, 0.0, False, True, False)
        torch.testing.assert_close(decomposition_table[operator](*given)[0], expected)
    assert (dict(operator.py_kernels), decomposition_table[operator]) == before
