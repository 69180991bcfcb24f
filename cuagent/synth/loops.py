"""Compose candidate tasks with a Python loop over time: averages, gated states, hand-written
recurrent cells.

Decay, update, readout and result of the loop are chosen at random. `torch.export` unrolls the loop,
so its operators repeat in the graph.
Not covered: loops whose length depends on the input.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from cuagent.synth.candidate import FIRST_BATCH, Candidate, drawn
from cuagent.synth.dimensions import SMALL, Dimensions
from cuagent.synth.source import labels, parse

STEPS = (6, 8, 10, 12, 16, 20, 24)
DECAYS = (
    "h = {n} * h + {m} * u",
    "g = torch.sigmoid(self.decay)\nh = g * h + (1 - g) * u",
    "g = torch.sigmoid(self.gate(v))\nh = g * h + (1 - g) * u",
    "g = torch.sigmoid(self.decay * h + v)\nh = g * h + (1 - g) * u",
    "g = torch.exp(-F.softplus(v))\nh = g * h + u",
    "h = torch.maximum({n} * h, u)",
)
"""Statements that compute the next state `h` from the update `u` and the step's input `v`."""
UPDATES = (
    "u = v",
    "u = torch.tanh(v)",
    "u = F.silu(v)",
    "u = torch.relu(v + self.shift * h)",
    "u = torch.tanh(self.inner(v) + self.outer(h))",
    "u = torch.tanh(v + self.outer(h))",
)
READOUTS = (
    "y = h",
    "y = h * torch.sigmoid(v)",
    "y = torch.tanh(h) + v",
    "y = h - v",
    "y = F.gelu(h)",
)
MATRIX = (
    "s = {n} * s + torch.unsqueeze(k[:, t], -1) * torch.unsqueeze(v, -2)",
    "g = torch.sigmoid(self.decay)\n"
    "s = torch.unsqueeze(g, -1) * s + torch.unsqueeze(k[:, t], -1) * torch.unsqueeze(v, -2)",
    "e = v - torch.sum(torch.unsqueeze(k[:, t], -1) * s, -2)\n"
    "s = s + {m} * torch.unsqueeze(k[:, t], -1) * torch.unsqueeze(e, -2)",
)
"""Statements that update a matrix state `s`, as in linear attention and the delta rule."""
ATTRIBUTES = {
    "decay": "nn.Parameter(torch.randn({d}))",
    "shift": "nn.Parameter(torch.randn({d}))",
    "gate": "nn.Linear({d}, {d})",
    "inner": "nn.Linear({d}, {d})",
    "outer": "nn.Linear({d}, {d}, bias=False)",
}


def loop_candidate(
    draw: random.Random,
    index: int,
    dtypes: Mapping[str, float],
    dimensions: Dimensions = SMALL,
) -> Candidate:
    """Return candidate task number `index` with a random loop over time. `dtypes`: relative share
    of each dtype."""
    width, steps = draw.choice(dimensions.loop_widths), draw.choice(STEPS)
    dtype = drawn(draw, dtypes)
    share = draw.choice((0.5, 0.7, 0.9, 0.95))
    matrix = draw.random() < 0.2
    names: tuple[str, ...]
    if matrix:
        width = min(width, dimensions.loop_matrix)
        names, state = ("x", "k", "q", "s"), f"BATCH, {width}, {width}"
        step = f"{draw.choice(MATRIX)}\ny = torch.sum(torch.unsqueeze(q[:, t], -1) * s, -2)"
    else:
        names, state = ("x", "h"), f"BATCH, {width}"
        step = "\n".join(draw.choice(part) for part in (UPDATES, DECAYS, READOUTS))
    step = step.replace("{n}", str(share)).replace("{m}", f"{1 - share:.2f}")
    ending = draw.choice(("torch.stack(ys, dim=1)", "torch.mean(torch.stack(ys, dim=1), dim=1)"))
    body = ["ys = []", f"for t in range({steps}):"]
    body += [f"    {line}" for line in ["v = x[:, t]", *step.split("\n"), "ys.append(y)"]]
    body.append(f"return {ending}")
    shapes = [f"BATCH, {steps}, {width}" for _ in names[1:]] + [state]
    code = _source(names, shapes, body, step, width, dtype)
    ops = tuple(labels(parse(code)))
    return Candidate(index, code, ops, ("loops",), dtype, "loop")


def _source(
    names: Sequence[str],
    shapes: Sequence[str],
    body: Sequence[str],
    step: str,
    width: int,
    dtype: str,
) -> str:
    made = [
        f"self.{name} = {text.replace('{d}', str(width))}"
        for name, text in ATTRIBUTES.items()
        if f"self.{name}" in step
    ]
    half = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    cast = [f"self.to(torch.{dtype})"] if half and made else []
    draws = "".join(f"        torch.randn({shape}{half}),\n" for shape in shapes)
    functional = "import torch.nn.functional as F\n" if "F." in step else ""
    return (
        f"import torch\nimport torch.nn as nn\n{functional}\nBATCH = {FIRST_BATCH}\n\n\n"
        f"class Model(nn.Module):\n    def __init__(self):\n"
        f"{_indented(['super().__init__()', *made, *cast])}\n"
        f"    def forward(self, {', '.join(names)}):\n{_indented(body)}\n\n"
        f"def get_inputs():\n    return [\n{draws}    ]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)
