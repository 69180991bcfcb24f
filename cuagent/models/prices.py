"""Look up the price and the context length of a model by its name.

The tables contain list prices and lengths as of 2026-11-21; a user's own prices take precedence. A
model without a price costs None, never 0: the run then warns that its cost limit does not apply.
Sources: platform.claude.com/docs/en/about-claude/pricing for claude-fable-*, claude-opus-5 and all
of generation 4; tables of third parties that cite the providers' own pages for claude-opus-5-5,
claude-sonnet-5*, claude-haiku-5-5 and for all of OpenAI's. A price may have changed since; only the
provider's bill is authoritative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cuagent.message import Usage


@dataclass(frozen=True)
class Long:
    """Surcharge for a call with a long prompt: factors on the prices of the whole call."""

    above: int
    """Number of prompt tokens, cached or not, above which the factors apply."""
    input: float
    """Factor on the prices of prompt tokens."""
    output: float
    """Factor on the price of output tokens."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens, for each of the disjoint parts of `Usage`."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    long: Long | None = None


def _anthropic(input: float, output: float, read: float = 0.1, long: Long | None = None) -> Price:
    # cache reads cost `read` times the input price, cache writes for five minutes 1.25 times
    return Price(input, output, read * input, 1.25 * input, long)


def _openai(
    input: float, output: float, cache_read: float, write: float = 1.0, long: Long | None = None
) -> Price:
    return Price(input, output, cache_read, write * input, long)


LONG = Long(272_000, 2, 1.5)
"""Surcharge for long prompts of OpenAI's models with a context of a million tokens."""
PRICES: Mapping[str, Price] = {
    "claude-fable-5-1": _anthropic(10, 50, read=0.025),
    "claude-fable-5": _anthropic(10, 50),
    "claude-opus-5-5": _anthropic(4, 20, read=0.05),
    "claude-opus-5": _anthropic(5, 25),
    "claude-opus-4-8": _anthropic(5, 25),
    "claude-opus-4-7": _anthropic(5, 25),
    "claude-sonnet-5-5": _anthropic(2, 10, read=0.05),
    "claude-sonnet-5": _anthropic(2, 10),
    "claude-haiku-5-5": _anthropic(0.1, 0.5, long=Long(100_000, 5, 5)),
    "claude-opus-4-6": _anthropic(5, 25),
    "claude-sonnet-4-6": _anthropic(3, 15),
    "claude-opus-4-5": _anthropic(5, 25),
    "claude-sonnet-4-5": _anthropic(3, 15),
    "claude-haiku-4-5": _anthropic(1, 5),
    "gpt-6.1-sol": _openai(2, 10, 0.1, 1.25, LONG),
    "gpt-6-sol": _openai(2, 10, 0.2, 1.25, LONG),
    "gpt-5.6-sol": _openai(5, 30, 0.5, 1.25, LONG),
    "gpt-5.6-terra": _openai(2.5, 15, 0.25, 1.25, LONG),
    "gpt-5.6-luna": _openai(1, 6, 0.1, 1.25, LONG),
    "gpt-5.5": _openai(5, 30, 0.5, long=LONG),
    "gpt-5.4": _openai(2.5, 15, 0.25, long=LONG),
    "gpt-5.4-mini": _openai(0.75, 4.5, 0.075),
    "gpt-5.4-nano": _openai(0.2, 1.25, 0.02),
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
CONTEXTS = (
    ("claude-haiku-5", 100_000),
    ("claude-haiku-4", 200_000),
    ("claude-opus-4", 200_000),
    ("claude-sonnet-4", 200_000),
    ("claude-", 1_000_000),
    ("gpt-6", 272_000),
    ("gpt-5", 272_000),
    ("gpt-4.1", 1_000_000),
    ("gpt-4o", 128_000),
    ("o3", 200_000),
    ("o4", 200_000),
)
"""Longest conversation in tokens, by the beginning of the model's name: the context length, or the
length above which a prompt costs more."""
SNAPSHOT = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)$")
"""Pattern of the date at the end of a model's name; it is removed to look up the price."""


def price_of(model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """Return the price of a model; None if unknown. The user's own prices `own` take precedence."""
    table = {**PRICES, **(own or {})}
    return table.get(model) or table.get(SNAPSHOT.sub("", model))


def context_of(model: str) -> int | None:
    """Return the longest conversation with a model in tokens; None if unknown."""
    return next((tokens for start, tokens in CONTEXTS if model.startswith(start)), None)


def cost_of(usage: Usage, price: Price | None) -> float | None:
    """Return the cost of one call in US dollars; None without a price."""
    if price is None:
        return None
    prompt = (
        usage.input * price.input
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
    )
    output = usage.output * price.output
    if price.long and usage.input + usage.cache_read + usage.cache_write > price.long.above:
        prompt, output = prompt * price.long.input, output * price.long.output
    return (prompt + output) / 1e6
