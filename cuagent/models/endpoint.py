"""Where a model is served, and what both providers share in talking to it: clear errors, retries.

Not covered: asynchronous calls; several answers to one question.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from cuagent.message import Reply
from cuagent.models.model import ContextOverflow, ModelError, ModelUnavailable, OnText
from cuagent.models.prices import Price
from cuagent.record import redactor

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LASTING = ("invalid_request", "authentication", "permission", "not_found", "billing", "quota")
"""What a stream's own error says where asking again is of no use."""
OVERLONG = (
    "context_length",
    "context length",
    "context window",
    "prompt is too long",
    "too many tokens",
    "maximum context",
)
"""How providers say that the conversation does not fit."""


@dataclass(frozen=True)
class Endpoint:
    """A server and how to talk to it. None leaves the choice to the SDK or to the server."""

    name: str
    """What stands before the colon in `name:model`."""
    protocol: Literal["openai", "responses", "anthropic"]
    """`openai` is chat completions, which all compatible servers speak."""
    key_variable: str
    """The environment variable that holds the key."""
    base_url: str | None = None
    context: int | None = None
    """Tokens that fit; else by name (`prices.py`)."""
    max_output: int | None = None
    price: Price | None = None
    """For every model of this server; else by name (`prices.py`)."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """temperature, top_p, seed, reasoning_effort, thinking, ...: sent as they are."""
    echo_reasoning: bool = False
    """Send `reasoning_content` back; some servers want it, others refuse it."""
    return_tokens: bool = False
    """Ask for token ids and log-probabilities (vLLM); training needs them."""
    needs_key: bool = True
    stall: float = 600.0
    """Seconds without a byte after which a reply is given up and asked for again. Any byte counts:
    text, a ping event, an SSE comment. A reply that never ends is ended by the run's wall time.
    A model may think for minutes before its first byte, so the default is that of the SDKs."""
    tries: int = 6
    patience: float = 1.0
    """Seconds before the first retry; doubled each time, at most a minute."""

    def key(self) -> str:
        """The key. Raises ModelError."""
        key = os.environ.get(self.key_variable, "").strip()
        if not key and self.needs_key:
            raise ModelError(
                f"{self.name}: no key; set {self.key_variable}, or use --model expert, "
                "which needs none"
            )
        return key or "none"


OPENAI = Endpoint("openai", "responses", "OPENAI_API_KEY")
ANTHROPIC = Endpoint("anthropic", "anthropic", "ANTHROPIC_API_KEY", max_output=32_000)


CONNECT = 30.0
"""Seconds in which a server takes the connection; that has nothing to do with thinking."""
MALFORMED = (ValueError, TypeError, AttributeError, LookupError)
"""What the SDKs and our readers of a stream meet where a server breaks its protocol."""


class Dropped(Exception):
    """The reply broke off before its end."""


def ask(
    once: Callable[[], Reply], sdk: ModuleType, endpoint: Endpoint, model: str, on_text: OnText
) -> Reply:
    """Call `once` until it answers. Raises ModelError, ContextOverflow or ModelUnavailable."""
    wait, why = endpoint.patience, ""
    for attempt in range(1, endpoint.tries + 1):
        try:
            return once()
        except (sdk.APIError, Dropped, *_transport_errors()) as error:
            if not _passing(error):
                raise _explain(error, endpoint, model) from error
            why = _stalled(error, sdk, endpoint) or _reason(error)
            pause = _retry_after(error) or wait * random.uniform(0.75, 1.25)
        except MALFORMED as error:
            why = f"the reply is not in the protocol ({_reason(error)})"
            pause = wait
        if attempt < endpoint.tries:
            on_text(f"\n[{endpoint.name}: {why}; asking again in {pause:.0f} s]\n", "reasoning")
            time.sleep(pause)
            wait = min(2 * wait, 60)
    raise ModelUnavailable(
        f"{endpoint.name}: {why}; gave up after {endpoint.tries} tries. "
        "The run is kept and can be resumed later"
    )


def greet(
    once: Callable[[], object], sdk: ModuleType, endpoint: Endpoint, model: str, address: str
) -> None:
    """Ask for the model's entry, which costs nothing, and heed only what is certain.

    That is: nobody listens there, or the key is unknown (401). A key may be good for replies and
    not for this (403), and compatible servers need not know the question (404).
    Raises ModelError and ModelUnavailable.
    """
    try:
        once()
    except sdk.APITimeoutError:
        return
    except sdk.APIConnectionError as error:
        raise ModelUnavailable(
            f"{endpoint.name}: no server answers at {redactor()(address)} "
            f"({error.__cause__ or error}); start it, or name another with --model"
        ) from error
    except sdk.AuthenticationError as error:
        raise _explain(error, endpoint, model) from error
    except (sdk.APIError, *_transport_errors(), *MALFORMED):
        return


def failure(words: str) -> ModelError:
    """What a server's own words in a stream amount to."""
    kind = ContextOverflow if _overlong(words) else ModelError
    return kind(redactor()(words))


def _transport_errors(kind: str = "HTTPError") -> tuple[type[Exception], ...]:
    # older SDKs let these through while a reply streams; which of the two is there varies
    found: list[type[Exception]] = []
    for name in ("httpx", "httpx2"):
        try:
            found.append(getattr(importlib.import_module(name), kind))
        except ImportError:
            continue
    return tuple(found)


def _passing(error: Exception) -> bool:
    """Whether asking again may help."""
    status = getattr(error, "status_code", None)
    if status is not None and status >= 400:
        return status in RETRIED and "insufficient_quota" not in str(error)
    # no status, or that of a stream which began well: the connection failed, or the stream carried
    # an error such as "overloaded"
    return not _overlong(str(error)) and not any(kind in str(error) for kind in LASTING)


def _explain(error: Exception, endpoint: Endpoint, model: str) -> ModelError:
    status = getattr(error, "status_code", None)
    where = f"{endpoint.name}:{model}"
    if status in (401, 403):
        return ModelError(
            f"{where}: the key in {endpoint.key_variable} was refused ({_reason(error)})"
        )
    if _overlong(str(error)):
        return ContextOverflow(f"{where}: the conversation is too long for the model")
    if status == 404:
        return ModelError(f"{where}: unknown model or address ({_reason(error)}); see --model")
    if status == 429:
        return ModelError(f"{where}: the account has no credit left ({_reason(error)})")
    return ModelError(f"{where}: the server refused the request ({_reason(error)})")


def _overlong(text: str) -> bool:
    return any(words in text.lower() for words in OVERLONG)


def _stalled(error: Exception, sdk: ModuleType, endpoint: Endpoint) -> str:
    """That nothing came, in words of ours; "" where it was something else."""
    timeouts = (sdk.APITimeoutError, *_transport_errors("TimeoutException"))
    if not isinstance(error, timeouts):
        return ""
    if _unconnected(error):
        return "no connection to the server"
    return (
        f"no byte came for {endpoint.stall:g} s (where the model thinks longer than that, set "
        "--model-timeout)"
    )


def _unconnected(error: Exception) -> bool:
    """Whether it was the connection that took too long, and no reply."""
    return any("ConnectTimeout" in type(e).__name__ for e in (error, error.__cause__) if e)


def _reason(error: Exception) -> str:
    """The server's own words, in one short line."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message") if isinstance(inner, dict) else str(inner)
    else:
        text = None
    status = getattr(error, "status_code", None)
    # a server may repeat the key that it refuses
    words = redactor()(" ".join(str(text or error or type(error).__name__).split())[:200])
    return f"{status}: {words}" if status else words


def _retry_after(error: Exception) -> float | None:
    """Seconds that the server asks to wait, if it does and they are few."""
    response = getattr(error, "response", None)
    try:
        seconds = float(response.headers["retry-after"])  # type: ignore[union-attr]
    except (AttributeError, KeyError, ValueError):
        return None
    return seconds if 0 < seconds <= 120 else None
