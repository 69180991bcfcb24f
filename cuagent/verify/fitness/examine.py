"""Examine a reference with a few calls: is it deterministic, stateless and sensitive to its inputs?

If a reference draws random numbers, keeps state between calls or ignores its inputs, no answer of a
candidate can be certified. Runs in the oracle's process, on the task's own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from cuagent.pieces import pieces
from cuagent.verify.inputs.derive import derive
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Tensor, nn

SEEDS = (1, 2)
"""Seeds of the two draws of inputs on which the reference is examined."""
MORE_SEEDS = tuple(range(3, 11))
"""Further seeds to try if the two draws are equal.

They can be equal if a task chooses among a few recorded inputs.
"""
NOISE = 1e-3
"""Largest relative difference between equal calls that another order of summation explains."""
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "uniform_", "exponential")

Forward = Callable[[list["Tensor"]], "list[Tensor]"]


def examine(model: nn.Module, forward: Forward, draw: Callable[[int], list[Tensor]]) -> Findings:
    """Call the reference about six times; return its properties.

    `forward` runs `model` on the given tensors without copying them. `draw(seed)` returns inputs
    from the task's get_inputs. Errors of the reference propagate.
    """
    import torch

    first = draw(SEEDS[0])
    second = _other_draw(first, draw)
    fixed = second is None
    if second is None:
        second = derive(Inputs.NORMAL, first, SEEDS[1])
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = [tensor.clone() for tensor in first]
    torch.manual_seed(1)
    once, random = _with_random_operators(lambda: forward(given))
    once = [tensor.clone() for tensor in once]
    changed_inputs = [i for i, (a, b) in enumerate(zip(first, given, strict=True)) if _differ(a, b)]
    changed_state = [n for n, tensor in model.state_dict().items() if _differ(tensor, state[n])]
    torch.manual_seed(2)
    again = forward([tensor.clone() for tensor in first])
    other = forward([tensor.clone() for tensor in second])
    return {
        "random": sorted(random),
        "changed_inputs": changed_inputs,
        "changed_state": changed_state,
        "noise": max((distance(a, b) for a, b in zip(once, again, strict=True)), default=0.0),
        "fixed": fixed,
        "constant": not any(_differ(a, b) for a, b in zip(once, other, strict=True)),
        "level": _level(once),
        "ignored": _ignored(forward, first, second, once),
        "not_finite": [i for i, t in enumerate(once) if not _finite(t)],
    }


def _other_draw(
    first: Sequence[Tensor], draw: Callable[[int], list[Tensor]]
) -> list[Tensor] | None:
    """Return a draw of the task's inputs that differs from `first`; None if every seed gives the
    same.
    """
    for seed in (SEEDS[1], *MORE_SEEDS):
        other = draw(seed)
        if any(_differ(a, b) for a, b in zip(first, other, strict=True)):
            return other
    return None


class Findings(TypedDict):
    """Properties of a reference, found by a few calls on two draws of the task's inputs."""

    random: list[str]
    """Names of the random operators that a call ran."""
    changed_inputs: list[int]
    """Indices of the inputs that a call writes to."""
    changed_state: list[str]
    """Names of the entries of the state dict that a call changes."""
    noise: float
    """Largest difference between the outputs of two equal calls, relative to the largest value."""
    fixed: bool
    """True if get_inputs returned the same inputs for every seed that was tried."""
    constant: bool
    """True if different inputs give the same output."""
    level: float | None
    """The number that all output elements equal; None if they are not all equal."""
    ignored: list[int]
    """Indices of the inputs that have no effect on the output."""
    not_finite: list[int]
    """Indices of the outputs that contain NaN or Inf."""


def _level(outputs: Sequence[Tensor]) -> float | None:
    if any(tensor.is_complex() for tensor in outputs):
        return None
    ends = {float(end) for t in outputs if t.numel() for end in (t.min(), t.max())}
    return ends.pop() if len(ends) == 1 else None


def _ignored(
    forward: Forward,
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    once: Sequence[Tensor],
) -> list[int]:
    """Return the indices of inputs that have no effect on the output."""
    ignored = []
    for index, tensor in enumerate(second):
        if not _differ(first[index], tensor):
            continue
        mixed = [t.clone() for t in first]
        mixed[index] = tensor.clone()
        results = forward(mixed)
        if not any(_differ(a, b) for a, b in zip(once, results, strict=True)):
            ignored.append(index)
    return ignored


def _with_random_operators(run: Callable[[], list[Tensor]]) -> tuple[list[Tensor], set[str]]:
    """Return the result of `run()`, and the names of the random operators that ran in it."""
    seen: set[str] = set()

    def watch(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = function.overloadpacket.__name__
        if any(word in name for word in _RANDOM):
            seen.add(name)
        return function(*args, **kwargs)

    with intercept_operators(watch):
        return run(), seen


def _differ(a: Tensor, b: Tensor) -> bool:
    import torch

    if a.shape != b.shape:
        return True
    return any(not (torch.equal(x, y) or distance(x, y) == 0) for x, y in pieces(a, b))


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest |a - b| divided by the largest |a|, over finite elements.

    It is inf if `a` and `b` are finite at different elements. For integers and booleans it is 1 if
    any element differs, else 0.
    """
    import torch

    if not a.numel():
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float(any(bool((x != y).any()) for x, y in pieces(a, b)))
    worst = scale = 0.0
    for x, y in pieces(a, b):
        finite = x.isfinite()
        if not torch.equal(finite, y.isfinite()):
            return float("inf")
        # Not x[finite], which creates an index of 8 bytes for each dimension of each element.
        scale = max(scale, float(torch.where(finite, x.abs(), 0).max()))
        worst = max(worst, float(torch.where(finite, (x - y).abs(), 0).max()))
    return worst / max(scale, 1e-30)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
