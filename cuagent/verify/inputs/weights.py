"""Kinds of weights that a candidate is tried with, made of the constructor's and a secret seed.

Buffers other than running statistics (masks, tables) stay but where weights are grown: there those
that the reference accepts otherwise are other ones (`roles`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.verify.inputs import draws
from cuagent.verify.trace.roles import FEW_NUMBERS, Roles, changed_buffer

if TYPE_CHECKING:
    from torch import Generator, Tensor

WHOLE = (2, -1, 1, 0, -2)
SMALL = 2.0**-8
SUNK = 1e4
TINY_GAIN = 1e-3
"""Below which a parameter of one value throughout (a layer's scale) is about to be learned."""
GROWTH = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
PAST_CLAMPS = (8.0, -8.0, 24.0, -24.0)
NUMBER, NUMBER_PAST = 5.0, 24.0
"""Added to a parameter of one or two numbers; where it is clamped."""
GROWN_SIZE = 2.0
"""Root mean square of tables and other tensors of several axes."""
SMALL_VARIANCE = 2.0**-10
"""Of running variances, for which the gain makes up: what an epsilon adds to them shows."""


class Weights(StrEnum):
    """Kinds of weights."""

    OWN = "own"
    """As the constructor draws them."""
    SHAKEN = "shaken"
    """Moved off special values: a fresh BatchNorm or LayerNorm is an identity."""
    SMALL = "small"
    """Scaled by 2^-8, but for gains: a norm behind them has little to divide by but its epsilon."""
    SUNK = "sunk"
    """Shaken, and 1e4 taken from all biases but those of norms: what follows a product is very
    negative, and far from zero beside its variation."""
    GROWN = "grown"
    """Shaken; what is no factor of a product has numbers of 0.5 to 4 of both signs added, and
    buffers are other ones: added scores, gains and thresholds decide something."""
    PAST = "grown past clamps"
    """The same, with numbers of 8 to 24 added to what is clamped, and single numbers lowered."""
    INTEGER = "integer"
    """-1, 0, 1; gains, slopes and biases -2 .. 2."""


def derive_weights(
    kind: Weights,
    state: dict[str, Tensor],
    parameters: frozenset[str],
    seed: int,
    roles: Roles | None = None,
    *,
    positive: bool = False,
) -> dict[str, Tensor]:
    """A state dict of `kind` from the constructor's.

    `roles` says what grows; `positive` has it grow upward only, where a logarithm wants that.
    """
    if kind is Weights.OWN:
        return state
    generator = draws.seeded(list(state.values()), seed)
    if kind in (Weights.GROWN, Weights.PAST):
        shaken = derive_weights(Weights.SHAKEN, state, parameters, seed)
        return _grown(kind, shaken, roles or Roles(), generator, positive=positive)
    changed = dict(state)
    for name, tensor in state.items():
        if tensor.is_floating_point():
            learned = name in parameters or name.endswith("running_mean")
            if learned:
                changed[name] = _weighted(kind, name, tensor, generator)
            elif kind is Weights.SHAKEN and name.endswith("running_var"):
                changed[name] = tensor * (0.3 * draws.randn(tensor, generator)).exp()
    if kind is Weights.SHAKEN:
        _narrow(changed)
    if kind is Weights.SUNK:
        changed |= {name: changed[name] - SUNK for name in parameters if _of_product(name, state)}
    return changed


def _weighted(kind: Weights, name: str, tensor: Tensor, generator: Generator) -> Tensor:
    match kind:
        case Weights.INTEGER if tensor.dim() < 2:
            return draws.dealt(WHOLE, tensor, generator).to(tensor.dtype)
        case Weights.INTEGER:
            return draws.randn(tensor, generator).round().clamp(-1, 1).to(tensor.dtype)
        case Weights.SMALL:
            gain = tensor.dim() < 2 and "bias" not in name
            return tensor if gain else tensor * SMALL
        case _:
            return _noisy(tensor, generator)


def _grown(
    kind: Weights, state: dict[str, Tensor], roles: Roles, generator: Generator, *, positive: bool
) -> dict[str, Tensor]:
    changed = dict(state)
    for name in sorted(roles.added):
        tensor, clamped = state[name], name in roles.clamped and kind is Weights.PAST
        if tensor.numel() <= FEW_NUMBERS:
            step = NUMBER_PAST if name in roles.clamped else NUMBER
            by = tensor.new_full(tensor.shape, step if kind is Weights.GROWN else -step)
        elif tensor.dim() < 2 or tensor.numel() == max(tensor.shape):
            by = draws.dealt(PAST_CLAMPS if clamped else GROWTH, tensor, generator)
        else:
            by = GROWN_SIZE * draws.randn(tensor, generator)
        changed[name] = (tensor + (by.abs() if positive else by)).to(tensor.dtype)
    for name in sorted(roles.buffers):
        changed[name] = changed_buffer(state[name], generator)
    return changed


def _of_product(name: str, state: dict[str, Tensor]) -> bool:
    """Whether it is a bias, and not one of a norm, which has a vector for its weight."""
    weight = state.get(name.replace("bias", "weight"))
    return (
        "bias" in name
        and state[name].is_floating_point()
        and not (weight is not None and weight is not state[name] and weight.dim() < 2)
    )


def _narrow(state: dict[str, Tensor]) -> None:
    """Every second running variance becomes small, and its gain with it, so that sizes stay."""
    for name in [name for name in state if name.endswith("running_var")]:
        gain = state.get(name.removesuffix("running_var") + "weight")
        if gain is not None and gain.shape == state[name].shape:
            state[name], gain = state[name].clone(), gain.clone()
            state[name][::2] *= SMALL_VARIANCE
            gain[::2] *= SMALL_VARIANCE**0.5
            state[name.removesuffix("running_var") + "weight"] = gain


def _noisy(tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    noise, wide = draws.randn(tensor, generator), tensor.float()
    rms = wide.square().mean().sqrt() if tensor.numel() else wide.sum()
    begun = tensor.numel() < 2 or rms >= TINY_GAIN or bool((wide != wide.view(-1)[0]).any())
    scale = torch.where((rms > 0) & begun, rms, torch.ones_like(rms))
    return (wide + 0.2 * scale * noise).to(tensor.dtype)
