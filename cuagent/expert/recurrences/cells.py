"""Define the recurrent cells, and the function that computes all steps of one in torch.

In each step t, with x = W_ih x_t + b_ih and h = W_hh h_(t-1) + b_hh in slices of the hidden size:

- rnn: h_t = tanh(x + h), or relu of it;
- gru: r, z = sigmoid(x + h), n = tanh(x_n + r h_n), h_t = n + z (h_(t-1) - n);
- lstm: i, f, o = sigmoid(x + h), g = tanh(x + h), c_t = f c_(t-1) + i g, h_t = o tanh(c_t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
"""Number of gates of each cell: its weights have this many slices of the hidden size."""
CELLS = {f"{name}_cell": name for name in GATES}
"""Short name of each cell ("gru"), by the name of torch's operator for a single step
("gru_cell").
"""


@dataclass(frozen=True)
class Recurrence:
    """One cell applied to all steps of a batch of sequences."""

    cell: str
    steps: int
    rows: int
    """Number of sequences in the batch."""
    hidden: int
    reverse: bool
    batch_first: bool
    """True if the batch dimension of the projected inputs precedes the steps."""
    processors: int = 0
    """Number of multiprocessors of the GPU; 0 on a CPU, whose kernel reads the weights in
    panels.
    """

    @property
    def gates(self) -> int:
        return GATES[self.cell]


@dataclass(frozen=True)
class LayerCall:
    """Options of a call of torch's recurrent layer."""

    launches: int
    """Least number of kernels that the call launches: one for each step, layer and direction."""


def recurrence(
    x: Any,
    states: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
    *,
    cell: str,
    reverse: bool = False,
    batch_first: bool = False,
    processors: int = 0,
) -> tuple[Any, ...]:
    """Return h_t of all steps (steps, rows, hidden), and for an lstm the last c (rows, hidden).

    `x` is (steps, rows, features), or with `batch_first` (rows, steps, features). `states` has h
    and for an lstm c before the first step. `processors` chooses the kernel (`Recurrence`).
    """
    import torch

    x = x.transpose(0, 1) if batch_first else x
    x = x.flip(0) if reverse else x
    biases = [] if bias_ih is None else [bias_ih, bias_hh]
    flags = (bool(biases), 1, 0.0, False, False, False)
    first = [state.unsqueeze(0).contiguous() for state in states]
    hx = first if cell == "lstm" else first[0]
    result = getattr(torch, cell)(x, hx, [weight_ih, weight_hh, *biases], *flags)
    outputs = result[0].flip(0) if reverse else result[0]
    return (outputs, result[2][0]) if cell == "lstm" else (outputs,)
