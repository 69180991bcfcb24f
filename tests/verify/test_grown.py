"""Grown weights: parameters and buffers have values that matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from regimes import Regime

from cuagent.verify import Verdict
from cuagent.verify.inputs.weights import Weights, derive_weights
from cuagent.verify.trace.roles import Roles, changed_buffer, roles_of

SCORES = Regime(
    "torch.randn(2, 16, 8)",
    "return (x @ x.transpose(1, 2) / 3 + self.bias).softmax(-1) @ x",
    """
    scores = (x @ x.transpose(1, 2)) / 3 + self.bias
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ x / weights.sum(-1, keepdim=True)
    """,
    {
        "scores kept within 1": """
        return (x @ x.transpose(1, 2) / 3 + self.bias.clamp(-1, 1)).softmax(-1) @ x
        """
    },
    construct="self.bias = torch.nn.Parameter(0.02 * torch.randn(16, 16))",
)
TEMPERATURE = Regime(
    "torch.randn(8, 32), torch.randn(8, 32)",
    """
    scale = self.log_scale.clamp(max=4.6).exp()
    return scale * F.normalize(x) @ F.normalize(y).t()
    """,
    """
    scale = torch.exp(torch.minimum(self.log_scale, self.log_scale.new_tensor(4.6)))
    a, b = (z / z.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12) for z in (x, y))
    return (a @ b.t()) * scale
    """,
    {
        "no clamp": """
        return self.log_scale.exp() * F.normalize(x) @ F.normalize(y).t()
        """
    },
    construct="self.log_scale = torch.nn.Parameter(torch.tensor(2.66))",
    arguments="x, y",
)
MASKED = Regime(
    "torch.randn(2, 12, 8)",
    """
    scores = (x @ x.transpose(1, 2)).masked_fill(self.mask == 0, -math.inf)
    return scores.softmax(-1) @ x * self.window
    """,
    """
    scores = torch.where(self.mask == 1, x @ x.transpose(1, 2), -math.inf)
    return (scores.softmax(-1) @ x) * self.window
    """,
    {
        "causal mask instead of the buffer": """
        return F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=1.0) * self.window
        """,
        "window recomputed": """
        scores = torch.where(self.mask == 1, x @ x.transpose(1, 2), -math.inf)
        return (scores.softmax(-1) @ x) * torch.hann_window(8)
        """,
    },
    construct="""
    self.register_buffer("mask", torch.ones(12, 12).tril())
    self.register_buffer("window", torch.hann_window(8))
    """,
)
REGIMES = {"scores": SCORES, "temperature": TEMPERATURE, "masked": MASKED}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_kernels_that_ignore_parameters_or_buffers_are_rejected(
    name: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    regime = REGIMES[name]
    verdict = regime_verdict(regime, regime.honest)
    assert verdict.accepted, verdict.detail
    for wrong in regime.wrong.values():
        assert not regime_verdict(regime, wrong).accepted


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.gain = torch.nn.Parameter(torch.zeros(4))
        self.temperature = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("edges", torch.linspace(-1, 1, 9))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("hidden", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) * self.gain * self.temperature.clamp(max=2).exp() * self.hidden
        return x + torch.bucketize(x, self.edges) + self.count


def test_grown_weights_change_all_but_factors_of_products() -> None:
    model, x = _Model(), torch.randn(6, 8)
    with torch.no_grad():
        roles = roles_of(model, lambda: [model(x)])
    assert roles.added == {"linear.bias", "gain", "temperature"}
    assert roles.clamped == {"temperature"}
    assert roles.buffers == {"edges", "count"}
    assert roles.unvaried == ("hidden",)  # not in the state dict
    names, state = frozenset(dict(model.named_parameters())), model.state_dict()
    grown = derive_weights(Weights.GROWN, state, names, 3, roles)
    past = derive_weights(Weights.PAST, state, names, 3, roles)
    assert grown["gain"].min() < -0.3
    assert grown["gain"].max() > 0.3
    assert grown["temperature"] > 5
    assert past["temperature"] < -5
    assert (grown["edges"].diff() > 0).all()
    assert not torch.equal(grown["edges"], state["edges"])
    assert grown["linear.weight"].abs().max() < 1
    upward = derive_weights(Weights.PAST, state, names, 3, roles, positive=True)
    assert upward["temperature"] > 5


@pytest.mark.parametrize("size", range(3, 9))
def test_short_vectors_get_the_largest_amounts(size: int) -> None:
    """An accepted bug limited the share of a step, which only a rate above 4.6 shows."""
    state, names = {"rate": torch.zeros(size)}, frozenset({"rate"})
    roles = Roles(added=names)
    for seed in range(5):
        grown = derive_weights(Weights.GROWN, state, names, seed, roles)["rate"]
        assert grown.max() > 3
        assert grown.min() < -3
        limits = Roles(added=names, clamped=names)
        past = derive_weights(Weights.PAST, state, names, seed, limits)["rate"]
        assert past.max() > 20
        assert past.min() < -20


def test_vectors_that_are_not_clamped_are_all_lowered_far_in_weights_past_clamps() -> None:
    """An accepted bug began a search at -1, below which no bias of -0.5 brought all scores."""
    state, names = {"bias": torch.zeros(8)}, frozenset({"bias"})
    for seed in range(5):
        past = derive_weights(Weights.PAST, state, names, seed, Roles(added=names))["bias"]
        assert past.max() < -2.5
        assert past.min() > -9


def test_changed_mask_buffer_keeps_its_two_values() -> None:
    mask = torch.full((6, 6), -torch.inf).triu(1)
    changed = changed_buffer(mask, torch.Generator().manual_seed(1))
    assert set(changed.unique().tolist()) == {-torch.inf, 0.0}
    assert (changed == 0).any(1).all()
    assert not torch.equal(changed, mask)


def test_a_clamped_number_becomes_small_in_small_weights() -> None:
    """The lower limit of a temperature then applies."""
    state = {"temperature": torch.ones(1), "gain": torch.ones(1)}
    names = frozenset(state)
    roles = Roles(added=names, clamped=frozenset({"temperature"}))
    small = derive_weights(Weights.SMALL, state, names, 3, roles)
    assert small["temperature"].item() == 2**-8
    assert small["gain"].item() == 1
