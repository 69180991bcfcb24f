"""Find model servers by name: the built-in ones and those in the user's settings.

    [endpoints.lab]
    base_url = "http://gpu7:8000/v1"
    key = "LAB_API_KEY"                 # the variable that holds it; omit if no key is needed
    context = 131072
    price = { input = 0.2, output = 0.8 }   # US dollars per million tokens
    sampling = { temperature = 0.7 }

    [prices."some-model"]
    input = 1.0
    output = 4.0

Invariant: an unknown key in the settings is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuagent.models.endpoint import ANTHROPIC, OPENAI, Endpoint
from cuagent.models.model import ModelError
from cuagent.models.prices import Price

SERVERS: Mapping[str, Endpoint] = {
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "openrouter": Endpoint(
        "openrouter", "openai", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"
    ),
    "ollama": Endpoint(
        "ollama", "openai", "OLLAMA_API_KEY", "http://127.0.0.1:11434/v1", needs_key=False
    ),
    "sglang": Endpoint(
        "sglang", "openai", "SGLANG_API_KEY", "http://127.0.0.1:30000/v1", needs_key=False
    ),
    "vllm": Endpoint(
        "vllm",
        "openai",
        "VLLM_API_KEY",
        "http://127.0.0.1:8000/v1",
        needs_key=False,
        return_tokens=True,
    ),
}
PROTOCOLS = ("openai", "responses", "anthropic")
KEYS: Mapping[str, tuple[type, ...]] = {
    "protocol": (str,),
    "base_url": (str,),
    "key": (str,),
    "context": (int,),
    "max_output": (int,),
    "price": (dict,),
    "sampling": (dict,),
    "echo_reasoning": (bool,),
    "return_tokens": (bool,),
    "stall": (int, float),
    "tries": (int,),
}


def endpoints_of(tables: Mapping[str, Any]) -> dict[str, Endpoint]:
    """Return the user's model servers by name, from the tables `[endpoints.NAME]` of the settings.

    A table with the name of a built-in server changes that server's settings. Raises ModelError.
    """
    return {name: _endpoint(name, table) for name, table in tables.items()}


def prices_of(tables: Mapping[str, Any]) -> dict[str, Price]:
    """Return the user's prices by the model's name, from the tables `[prices.NAME]` of the
    settings.

    Raises ModelError.
    """
    return {name: _price(f"prices.{name}", table) for name, table in tables.items()}


def _endpoint(name: str, table: Any) -> Endpoint:
    where = f"endpoints.{name}"
    _check(where, table, KEYS)
    if name not in SERVERS and "base_url" not in table:
        raise ModelError(f"{where}: base_url is missing; set it to the server's address")
    if table.get("protocol", "openai") not in PROTOCOLS:
        raise ModelError(f"{where}: protocol is {table['protocol']!r}; use {', '.join(PROTOCOLS)}")
    given = {key: value for key, value in table.items() if key not in ("key", "price")}
    if "price" in table:
        given["price"] = _price(f"{where}.price", table["price"])
    if "key" in table:
        given |= {"key_variable": table["key"], "needs_key": True}
    builtin = SERVERS.get(name)
    if builtin is None:
        base = {"protocol": "openai", "key_variable": f"{name.upper()}_API_KEY", "needs_key": False}
        return Endpoint(name, **(base | given))
    return Endpoint(**(vars(builtin) | given))


def _price(where: str, table: Any) -> Price:
    number = (int, float)
    _check(where, table, dict.fromkeys(("input", "output", "cache_read", "cache_write"), number))
    for key in ("input", "output"):
        if key not in table:
            raise ModelError(f"{where}: {key} is missing; give US dollars per million tokens")
    paid = table["input"]
    return Price(
        paid, table["output"], table.get("cache_read", paid), table.get("cache_write", paid)
    )


def _check(where: str, table: Any, wanted: Mapping[str, tuple[type, ...]]) -> None:
    if not isinstance(table, Mapping):
        raise ModelError(f"{where}: must be a table; known keys are {', '.join(wanted)}")
    for key, value in table.items():
        if key not in wanted:
            raise ModelError(f"{where}: no key {key!r}; known are {', '.join(wanted)}")
        right = isinstance(value, wanted[key])
        if not right or (isinstance(value, bool) and bool not in wanted[key]):
            kind = " or ".join(t.__name__ for t in wanted[key])
            raise ModelError(f"{where}: {key} is {value!r}; it takes a {kind}")
