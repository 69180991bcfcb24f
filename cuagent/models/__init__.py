"""Language models by name: create one from the provider that its name gives.

expert                       offline, the default where no key is set
openai:gpt-6.1-sol           OPENAI_API_KEY, OPENAI_BASE_URL
anthropic:claude-sonnet-5-5  ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL
openrouter:, vllm:, sglang:, ollama:  each with the name of a model (`servers.py`)
NAME:model                   a server of the user's own (`endpoints_of`)
scripted:FILE                replies from a JSONL file
replay:RUN                   the replies of a recorded run
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuagent.models.endpoint import ANTHROPIC, OPENAI, Endpoint
from cuagent.models.model import Model, ModelError
from cuagent.models.prices import Price
from cuagent.models.servers import SERVERS, endpoints_of, prices_of

if TYPE_CHECKING:
    from cuagent.task import Task

__all__ = [
    "Endpoint",
    "Model",
    "ModelError",
    "Price",
    "default_model",
    "endpoints_of",
    "make_model",
    "prices_of",
]

DEFAULTS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-sol"}
"""Default model name of each provider."""


def default_model() -> str:
    """Return the full name of the default model: that of a provider whose API key is set, else
    `expert`."""
    for endpoint in (ANTHROPIC, OPENAI):
        if os.environ.get(endpoint.key_variable, "").strip():
            return f"{endpoint.name}:{DEFAULTS[endpoint.name]}"
    return "expert"


def make_model(
    name: str | None = None,
    *,
    task: Task | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
    prices: Mapping[str, Price] | None = None,
    stall: float | None = None,
) -> Model:
    """Create the model with the given name; None means the default model.

    `task` is needed for the expert only. `endpoints` are the user's own servers and `prices` the
    user's own prices, by name. `stall` replaces the endpoint's time-out, in seconds without a byte.
    Raises ModelError if the name is unknown or the key is missing.
    """
    kind, _, rest = (name or default_model()).partition(":")
    servers = {**SERVERS, **(endpoints or {})}
    match kind:
        case "expert":
            return _expert(task)
        case "scripted":
            from cuagent.models.scripted import script

            return script(Path(rest))
        case "replay":
            from cuagent.models.scripted import replay
            from cuagent.record import find_run

            return replay(find_run(rest))
    if kind not in servers:
        choices = ", ".join(["expert", *(f"{server}:MODEL" for server in servers), "scripted:FILE"])
        raise ModelError(f"unknown model {name!r}; use one of {choices}")
    model = rest or DEFAULTS.get(kind, "")
    if not model:
        raise ModelError(f"{kind}: no model named; write {kind}:MODEL")
    return _served(model, servers[kind], prices, stall)


def _served(
    model: str, endpoint: Endpoint, prices: Mapping[str, Price] | None, stall: float | None
) -> Model:
    compatible = endpoint is OPENAI and os.environ.get("OPENAI_BASE_URL")
    if stall is not None:
        endpoint = replace(endpoint, stall=stall)
    if endpoint.protocol == "anthropic":
        from cuagent.models.anthropic import AnthropicModel

        return AnthropicModel(model, endpoint, prices)
    if compatible:
        # a compatible server: it supports chat completions, and seldom needs a key
        endpoint = replace(endpoint, protocol="openai", needs_key=False)
    if endpoint.protocol == "responses":
        from cuagent.models.responses import ResponsesModel

        return ResponsesModel(model, endpoint, prices)
    from cuagent.models.openai import OpenAIModel

    return OpenAIModel(model, endpoint, prices)


def _expert(task: Task | None) -> Model:
    from cuagent.expert.search.tuning import folder_of_user
    from cuagent.models.expert import ExpertModel

    if task is None:
        raise ModelError("the expert needs a task")
    return ExpertModel(task, folder_of_user())
