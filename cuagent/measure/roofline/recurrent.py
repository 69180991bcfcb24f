"""Names, arguments and outputs of torch's recurrent layers (GRU, LSTM, RNN)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FUNCTIONS = ("gru", "lstm", "rnn_tanh", "rnn_relu")
"""Names of the functions and operators that run a whole recurrent module."""
ARGUMENTS = (
    *("input", "state", "parameters", "has_biases"),
    *("layers", "dropout", "train", "bidirectional", "batch_first"),
)
"""Arguments of these functions for a padded batch; a packed sequence has others."""


def empty_outputs(name: str, call: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return empty outputs of a recurrent module: those of all steps, and its last states.

    `call` has its arguments by name (`ARGUMENTS`).
    """
    import torch

    states = list(call["state"]) if name == "lstm" else [call["state"]]
    width = states[0].shape[-1] * (2 if call["bidirectional"] else 1)
    shapes = [(*call["input"].shape[:-1], width), *(state.shape for state in states)]
    like = call["input"]
    outs = [torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes]
    if call["batch_first"]:  # torch computes in steps of time, and returns a view
        batch, length, width = shapes[0]
        steps = torch.empty(length, batch, width, dtype=like.dtype, device=like.device)
        outs[0] = steps.transpose(0, 1)
    return outs
