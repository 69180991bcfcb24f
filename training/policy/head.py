"""Compute logits, log-probabilities and values in fp32 at the output head of a model.

A 16-bit head rounds each logit: at 20 a bfloat16 number has steps of 0.125, so sampler and trainer
would differ by that much for the same hidden state. Here the operands of the product have the type
of the other products, and its sums and results are fp32. On a GPU this is one product of the same
speed. The value head, one row of weights, is computed in fp32 altogether.

`TokenLogprobs` computes log-probabilities without storing logits: they are computed for some tokens
at a time, and again in the backward pass.
Not covered: heads of sharded models in the trainer and families that change logits after the head
(`model.has_plain_head`), which store all logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 28
"""Largest number of logits in memory at the same time; 1 GiB in fp32."""
OWN = "cuagent_head"
"""Attribute that marks a head whose `forward` was replaced."""


def use_fp32_heads(model: Any) -> None:
    """Make the model's output head, or its value head, return fp32."""
    for head in heads(model):
        if not getattr(head, OWN, False):
            setattr(head, OWN, True)
            head.forward = partial(values if head.out_features == 1 else logits, head)


def heads(model: Any) -> Iterator[Any]:
    """Yield the plain linear output heads of a model: that of the logits, or those of one value."""
    out = model.get_output_embeddings()
    if out is not None:
        yield from [out] if type(out) is torch.nn.Linear else []
        return
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and module.out_features == 1 and "lora_" not in name:
            yield module


def values(head: torch.nn.Linear, hidden: Tensor) -> Tensor:
    """Return the head's output [..., 1] for `hidden` [..., width], computed in fp32."""
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.float()
        return torch.nn.functional.linear(hidden.float(), head.weight.float(), bias)


def logits(head: torch.nn.Linear, hidden: Tensor) -> Tensor:
    """Return the logits [..., V] in fp32 for `hidden` [..., width]."""
    low = product_type(hidden, head.weight)
    flat: Tensor = Logits.apply(hidden.flatten(0, -2), head.weight, low)
    wide = flat.view(*hidden.shape[:-1], len(head.weight))
    return wide if head.bias is None else wide + head.bias.float()


def token_logprobs_of(head: torch.nn.Linear, hidden: Tensor, ids: Tensor) -> Tensor:
    """Return log p(id) [n] in fp32 for `hidden` [n, width] and `ids` [n], without storing the
    logits."""
    low = product_type(hidden, head.weight)
    found: Tensor = TokenLogprobs.apply(hidden, head.weight, head.bias, ids, low)
    return found


def product_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Return the type of the operands of matrix products: autocast's, or that of the weights."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of `a` [n, k] and `b` [k, m], of one type, with sums and results in
    fp32."""
    with torch.autocast(a.device.type, enabled=False):
        if a.dtype is torch.float32:
            return a @ b
        if a.is_cuda and "dtype" in torch.ops.aten.mm.overloads():  # since torch 2.8
            return torch.mm(a, b, out_dtype=torch.float32)
        if a.is_cuda:
            return (a @ b).float()
        return a.float() @ b.float()


class Logits(torch.autograd.Function):
    """Logits [n, V] in fp32 of hidden states [n, width] and weights [V, width]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, low: torch.dtype) -> Tensor:
        h, w = hidden.to(low), weight.to(low)
        ctx.save_for_backward(h, w)
        ctx.types = hidden.dtype, weight.dtype
        return product(h, w.T)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, w = ctx.saved_tensors
        low = grad.to(h.dtype)
        of_hidden, of_weight = ctx.types
        return (
            product(low, w).to(of_hidden) if ctx.needs_input_grad[0] else None,
            product(low.T, h).to(of_weight) if ctx.needs_input_grad[1] else None,
            None,
        )


class TokenLogprobs(torch.autograd.Function):
    """Log-probabilities [n] in fp32 of the tokens `ids` [n] for hidden states [n, width], weights
    [V, width] and a bias [V] or None.

    The backward pass computes the logits again, except those of the last chunk. The gradient of the
    logits, g (1[id] - p), is formed in fp32 in their own memory. The weights' gradients of all
    chunks are added in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, low: torch.dtype
    ) -> Tensor:
        h, w = hidden.to(low), weight.to(low)
        found, totals = hidden.new_empty(2, len(ids), dtype=torch.float32)
        ctx.last = None
        for span in spans(len(ids), len(weight)):
            ctx.last = None  # free it before the next one is computed
            x = biased(product(h[span], w.T), bias)
            own = x.gather(1, ids[span, None])
            most = x.amax(1, keepdim=True)
            summed = x.sub_(most).exp_().sum(1, keepdim=True)
            total = most + summed.log()
            totals[span] = total[:, 0]
            found[span] = (own - total)[:, 0]
            ctx.last = span, x, summed
        ctx.save_for_backward(h, w, bias, ids, totals)
        ctx.types = hidden.dtype, weight.dtype
        return found

    @staticmethod
    def probabilities(ctx: Any, span: slice) -> Tensor:
        """Return the probabilities of all tokens of the vocabulary, [n, V], of one chunk."""
        h, w, bias, _, totals = ctx.saved_tensors
        if ctx.last is not None and ctx.last[0] == span:
            _, x, summed = ctx.last
            ctx.last = None  # the caller overwrites it
            return x.div_(summed)
        return biased(product(h[span], w.T), bias).sub_(totals[span, None]).exp_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, w, bias, ids, _ = ctx.saved_tensors
        of_hidden, of_weight = ctx.types
        wanted = ctx.needs_input_grad
        each = torch.empty_like(h, dtype=of_hidden) if wanted[0] else None
        summed = torch.zeros_like(w, dtype=torch.float32) if wanted[1] else None
        shift = torch.zeros_like(bias, dtype=torch.float32) if wanted[2] else None
        for span in reversed(list(spans(len(ids), len(w)))):  # the stored one first, to free it
            x = TokenLogprobs.probabilities(ctx, span)
            g, at = grad[span, None].float(), ids[span, None]
            own = g * (1 - x.gather(1, at))
            x.mul_(-g).scatter_(1, at, own)
            if shift is not None:
                shift += x.sum(0)
            low = x.to(h.dtype)
            if each is not None:
                each[span] = product(low, w)
            if summed is not None:
                add_product(summed, low.T, h[span])
        return (
            each,
            None if summed is None else summed.to(of_weight),
            None if shift is None else shift.to(bias.dtype),
            None,
            None,
        )


def biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x.add_(bias.float())


def add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the matrix product of `a` [n, k] and `b` [k, m] to `into` [n, m] fp32 in place."""
    with torch.autocast(a.device.type, enabled=False):
        if a.dtype is torch.float32:
            into.addmm_(a, b)
        elif a.is_cuda and "dtype_out" in torch.ops.aten.addmm.overloads():
            torch.ops.aten.addmm.dtype_out(into, a, b, torch.float32, out=into)
        else:
            into.add_(product(a, b))


def spans(count: int, vocabulary: int) -> Iterator[slice]:
    """Yield one or more slices of `count` tokens, of similar lengths and at most `CHUNK`
    logits."""
    parts = max(1, -(-count * vocabulary // CHUNK))
    length = max(1, -(-count // parts))
    for at in range(0, max(1, count), length):
        yield slice(at, at + length)
