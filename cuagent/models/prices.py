"""What a call costs: US dollars for a million tokens, by the model's name.

The table holds list prices as known on 2026-11-21; a user's own table comes first. A model without
a price costs None, never 0: the run then says that its cost limit cannot hold.
"""

from __future__ import annotations

import re
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
    "claude-sonnet-5-5": _anthropic(2, 10),
    "claude-sonnet-5": _anthropic(2, 10),
    "claude-opus-4-6": _anthropic(5, 25),
    "claude-sonnet-4-6": _anthropic(3, 15),
    "claude-opus-4-5": _anthropic(5, 25),
    "claude-sonnet-4-5": _anthropic(3, 15),
    "claude-haiku-4-5": _anthropic(1, 5),
    "gpt-5.4": _openai(2.5, 15, 0.25),
    "gpt-5.4-mini": _openai(0.75, 4.5, 0.075),
    "gpt-5.1": _openai(1.25, 10, 0.125),
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
SNAPSHOT = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)$")
"""What names a version of a model at the same price; no other name is taken for another's."""


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """The price of a model by its name, dated or not; the user's table first."""
    table = {**PRICES, **(own or {})}
    return table.get(model) or table.get(SNAPSHOT.sub("", model))


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
