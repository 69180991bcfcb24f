"""Abstract class of the models behind a server, for all protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from cuagent.message import Message, Reply
from cuagent.models.endpoint import Endpoint, ask, greet
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.prices import Price, context_of, price_of

GREET_TIMEOUT = 5.0
"""Seconds that `greet` waits for an answer; a slower server passes the check."""


class Served(ABC):
    """A model of one server. The constructor raises ModelError if the key is missing."""

    default_endpoint: ClassVar[Endpoint]
    """Server that is used if the constructor is given none."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.endpoint = endpoint or self.default_endpoint
        self.name = f"{self.endpoint.name}:{model}"
        self.model = model
        self.price = self.endpoint.price or price_of(model, prices)
        self.context = self.endpoint.context or context_of(model)
        self.sampling = dict(self.endpoint.sampling)
        self._sdk, self._client = self.connect()

    def greet(self) -> None:
        """Check that the server answers and accepts the key. Raises ModelError."""
        client = self._client.with_options(timeout=GREET_TIMEOUT)
        address = str(client.base_url)
        greet(
            lambda: client.models.retrieve(self.model),
            self._sdk,
            self.endpoint,
            self.model,
            address,
        )

    def query(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Reply:
        once = self.once(messages, tools, on_text)
        return ask(once, self._sdk, self.endpoint, self.model, on_text)

    @abstractmethod
    def connect(self) -> tuple[ModuleType, Any]:
        """Return the provider's SDK and its client for this server."""

    @abstractmethod
    def once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Callable[[], Reply]:
        """Return a function that sends one request and returns the reply; each retry calls it
        again."""
