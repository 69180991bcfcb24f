"""Test output heads: log-probabilities without stored logits, fp32 results from 16-bit products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_game import small_actor

from cuagent.training.algorithms.losses import token_logprobs
from cuagent.training.policy import head
from cuagent.training.policy.lora import Lora, adapt
from cuagent.training.policy.model import new_critic, value_head
from cuagent.training.policy.placement import Dtype, Placement, place

WORDS, WIDTH, TOKENS = 101, 16, 37


def inputs() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a head, hidden states [n, width], ids [n] and weights of a loss [n]; logits reach
    30."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(WIDTH, WORDS)
    torch.nn.init.normal_(linear.weight, std=2.0)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    return linear, hidden, torch.randint(0, WORDS, (TOKENS,)), torch.randn(TOKENS)


def measured(of: Any, linear: torch.nn.Linear, hidden: torch.Tensor, weights: torch.Tensor) -> Any:
    """Return the log-probabilities and the gradients of their weighted sum."""
    found = of()
    return found, *torch.autograd.grad((found * weights).sum(), [hidden, *linear.parameters()])


@pytest.mark.parametrize("chunk", [1 << 28, 500])
def test_logprobs_and_gradients_equal_those_from_stored_logits(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", chunk)
    linear, hidden, ids, weights = inputs()
    assert len(list(head.spans(TOKENS, WORDS))) == (1 if chunk > 500 else 8)
    ours = measured(lambda: head.token_logprobs_of(linear, hidden, ids), linear, hidden, weights)
    plain = measured(lambda: token_logprobs(linear(hidden), ids), linear, hidden, weights)
    through = measured(
        lambda: token_logprobs(head.logits(linear, hidden), ids), linear, hidden, weights
    )
    twice = head.token_logprobs_of(linear, hidden, ids)
    (first,) = torch.autograd.grad((twice * weights).sum(), [hidden], retain_graph=True)
    assert torch.equal(first, ours[1])
    (second,) = torch.autograd.grad((twice * weights).sum(), [hidden])
    torch.testing.assert_close(second, first, atol=2e-5, rtol=1e-5)
    for found in (ours, through):
        for a, b in zip(found, plain, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_products_in_bf16_give_logprobs_that_are_not_rounded_to_bf16() -> None:
    linear, hidden, ids, weights = inputs()
    rounded = hidden.detach().bfloat16().double(), linear.weight.detach().bfloat16().double()
    exact = token_logprobs(rounded[0] @ rounded[1].T + linear.bias.double(), ids)
    with torch.autocast("cpu", torch.bfloat16):
        ours = measured(
            lambda: head.token_logprobs_of(linear, hidden, ids), linear, hidden, weights
        )
        logits = head.logits(linear, hidden)
        plain = token_logprobs(linear(hidden), ids)
    assert float((plain - exact).detach().abs().max()) > 0.02
    torch.testing.assert_close(ours[0], exact.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(token_logprobs(logits, ids), exact.float(), atol=1e-5, rtol=1e-5)
    assert {x.dtype for x in ours} == {torch.float32}
    wanted = measured(lambda: token_logprobs(linear(hidden), ids), linear, hidden, weights)
    for a, b in zip(ours[1:], wanted[1:], strict=True):
        assert float((a - b).norm() / b.norm()) < 0.02


@pytest.mark.parametrize("rank", [0, 2])
def test_values_are_not_rounded_to_bf16(rank: int) -> None:
    if rank:
        pytest.importorskip("peft")
    critic = new_critic(small_actor())
    torch.nn.init.normal_(value_head(critic).weight, mean=0.3)
    placed = place(adapt(critic, Lora(rank)), Placement(compute=Dtype.BF16), "cpu")
    found = placed(input_ids=torch.arange(2, 12)[None], use_cache=False).logits
    assert found.dtype is torch.float32
    assert not torch.equal(found, found.bfloat16().float())


def test_model_with_bf16_weights_adds_its_layers_in_fp32() -> None:
    placed = place(small_actor().bfloat16(), Placement(), "cpu")
    seen: list[torch.dtype] = []
    placed.model.layers[-1].register_forward_hook(lambda *a: seen.append(a[2].dtype))
    logits = placed(input_ids=torch.arange(2, 12)[None], use_cache=False).logits
    assert (seen, logits.dtype) == ([torch.float32], torch.float32)
    assert {p.dtype for p in placed.parameters()} == {torch.bfloat16}


def test_rows_without_action_tokens_have_no_logits() -> None:
    linear, hidden, ids, _ = inputs()
    assert list(head.spans(0, WORDS)) == [slice(0, 1)]
    assert head.token_logprobs_of(linear, hidden[:0], ids[:0]).shape == (0,)
    assert head.logits(linear, hidden[:0]).shape == (0, WORDS)
