"""What a call costs: US dollars for a million tokens, by the start of the model's name.

The table holds list prices as of 2025-11; a user's own table comes first. A model without a
price costs None, never 0: the run then says that its cost limit cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuagent.message import Usage


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens of each disjoint part."""

    input: float
    output: float
    cache_read: float
    cache_write: float


def _anthropic(input: float, output: float) -> Price:
    # reads at a tenth, writes for five minutes at five quarters
    return Price(input, output, cache_read=0.1 * input, cache_write=1.25 * input)


def _openai(input: float, output: float, cache_read: float) -> Price:
    return Price(input, output, cache_read, cache_write=input)


PRICES: Mapping[str, Price] = {
    "claude-opus-4-5": _anthropic(5, 25),
    "claude-opus-4": _anthropic(15, 75),
    "claude-sonnet-4": _anthropic(3, 15),
    "claude-haiku-4-5": _anthropic(1, 5),
    "claude-3-5-haiku": _anthropic(0.8, 4),
    "gpt-5": _openai(1.25, 10, 0.125),
    "gpt-5-mini": _openai(0.25, 2, 0.025),
    "gpt-5-nano": _openai(0.05, 0.4, 0.005),
    "gpt-4.1": _openai(2, 8, 0.5),
    "gpt-4.1-mini": _openai(0.4, 1.6, 0.1),
    "gpt-4o": _openai(2.5, 10, 1.25),
    "gpt-4o-mini": _openai(0.15, 0.6, 0.075),
    "o3": _openai(2, 8, 0.5),
    "o4-mini": _openai(1.1, 4.4, 0.275),
}


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """The price whose name is the longest start of `model`; the user's table first."""
    for table in (own or {}, PRICES):
        name = max((n for n in table if model.startswith(n)), key=len, default=None)
        if name is not None:
            return table[name]
    return None


def cost_of(usage: Usage, price: Price | None) -> float | None:
    """US dollars of one call; None without a price."""
    if price is None:
        return None
    dollars = (
        usage.input * price.input
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
        + usage.output * price.output
    )
    return dollars / 1e6
