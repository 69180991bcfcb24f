"""What the protocols have in common: a model that a server answers for, and how it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from cuagent.message import Message, Reply
from cuagent.models.endpoint import Endpoint, ask, greet
from cuagent.models.model import OnText, ToolSpec
from cuagent.models.prices import Price, context_of, price_of

PATIENCE = 5.0
"""Seconds that a greeting waits; a server that is only slow is no reason to refuse."""


class Served(ABC):
    """One model of one server. Raises ModelError where its key is missing."""

    usual: ClassVar[Endpoint]
    """The server where none is named."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.endpoint = endpoint or self.usual
        self.name = f"{self.endpoint.name}:{model}"
        self.model = model
        self.price = self.endpoint.price or price_of(model, prices)
        self.context = self.endpoint.context or context_of(model)
        self.sampling = dict(self.endpoint.sampling)
        self._sdk, self._client = self.connect()

    def greet(self) -> None:
        """Before any work: whether the server is there and takes the key. Raises ModelError."""
        client = self._client.with_options(timeout=PATIENCE)
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
        """The provider's SDK and a client of it for this server."""

    @abstractmethod
    def once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText
    ) -> Callable[[], Reply]:
        """What asks a single time, and may be called again with the same request."""
