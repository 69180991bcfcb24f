"""Describe a model server, and call it with retries and clear errors, for all protocols.

Not covered: asynchronous calls; several answers to one request.
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
"""HTTP status codes of errors that a retry may avoid."""
PERMANENT = ("invalid_request", "authentication", "permission", "not_found", "billing", "quota")
"""Words in an error within a stream that show that a retry cannot succeed."""
OVERLONG = (
    "context_length",
    "context length",
    "context window",
    "prompt is too long",
    "too many tokens",
    "maximum context",
)
"""Phrases in the providers' errors for a conversation that exceeds the model's context."""


@dataclass(frozen=True)
class Endpoint:
    """A model server and its settings. None leaves a setting to the SDK or to the server."""

    name: str
    """Part before the colon in the name of a model, `name:model`."""
    protocol: Literal["openai", "responses", "anthropic"]
    """API of the server. `openai` means chat completions, which all compatible servers support."""
    key_variable: str
    """Name of the environment variable with the API key."""
    base_url: str | None = None
    context: int | None = None
    """Context length in tokens; None to look it up by the model's name (`prices.py`)."""
    max_output: int | None = None
    price: Price | None = None
    """Price of every model of this server; None to look it up by the model's name (`prices.py`)."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields to add to each request unchanged: temperature, top_p, seed, reasoning_effort,
    thinking, ..."""
    echo_reasoning: bool = False
    """True to send a reply's `reasoning_content` back later; some servers need it, others refuse
    it."""
    return_tokens: bool = False
    """True to request token ids and log-probabilities (vLLM); training needs them."""
    needs_key: bool = True
    stall: float = 600.0
    """Seconds without a byte after which a request is retried. Any byte counts: text, a ping event,
    an SSE comment. A model may think for minutes before its first byte, so the default is that of
    the SDKs. A reply that never ends is stopped by the run's wall-time limit."""
    tries: int = 6
    """Largest number of times that a request is sent."""
    retry_delay: float = 1.0
    """Seconds before the first retry; doubled before each further one, up to a minute."""

    def key(self) -> str:
        """Return the API key. Raises ModelError if it is needed but not set."""
        key = os.environ.get(self.key_variable, "").strip()
        if not key and self.needs_key:
            raise ModelError(
                f"{self.name}: no key; set {self.key_variable}, or use --model expert, "
                "which needs none"
            )
        return key or "none"


OPENAI = Endpoint("openai", "responses", "OPENAI_API_KEY")
ANTHROPIC = Endpoint("anthropic", "anthropic", "ANTHROPIC_API_KEY", max_output=32_000)


CONNECT_TIMEOUT = 30.0
"""Time limit in seconds for opening a connection; the model's thinking time does not count here."""
MALFORMED = (ValueError, TypeError, AttributeError, LookupError)
"""Exceptions that the SDKs and our stream readers raise if a server violates its protocol."""


class Dropped(Exception):
    """Error: a reply stopped before its end. The request is retried."""


def ask(
    once: Callable[[], Reply], sdk: ModuleType, endpoint: Endpoint, model: str, on_text: OnText
) -> Reply:
    """Call `once`, which sends a request and returns the reply; retry after transient errors.

    It is called at most `endpoint.tries` times. Retries are announced to `on_text` as reasoning.
    Raises ModelError, ContextOverflow or ModelUnavailable.
    """
    delay, why = endpoint.retry_delay, ""
    for attempt in range(1, endpoint.tries + 1):
        try:
            return once()
        except (sdk.APIError, Dropped, *_transport_errors()) as error:
            if not _is_transient(error):
                raise _explain(error, endpoint, model) from error
            why = _stalled(error, sdk, endpoint) or _reason(error)
            pause = _retry_after(error) or delay * random.uniform(0.75, 1.25)
        except MALFORMED as error:
            why = f"the reply violates the protocol ({_reason(error)})"
            pause = delay
        if attempt < endpoint.tries:
            on_text(f"\n[{endpoint.name}: {why}; next try after {pause:.0f} s]\n", "reasoning")
            time.sleep(pause)
            delay = min(2 * delay, 60)
    raise ModelUnavailable(
        f"{endpoint.name}: {why}; gave up after {endpoint.tries} tries. "
        "The run is saved and can be resumed later"
    )


def greet(
    once: Callable[[], object], sdk: ModuleType, endpoint: Endpoint, model: str, address: str
) -> None:
    """Check that the server answers and accepts the key, by a request that costs nothing.

    `once` requests the model's entry. `address` is the server's URL for messages. Raises
    ModelUnavailable if no server answers, and ModelError if the key is unknown (401). Other errors
    are ignored: a key may be valid for replies but not for this request (403), and compatible
    servers may not support it (404).
    """
    try:
        once()
    except sdk.APITimeoutError:
        return
    except sdk.APIConnectionError as error:
        raise ModelUnavailable(
            f"{endpoint.name}: no server answers at {redactor()(address)} "
            f"({error.__cause__ or error}); start it, or choose another model with --model"
        ) from error
    except sdk.AuthenticationError as error:
        raise _explain(error, endpoint, model) from error
    except (sdk.APIError, *_transport_errors(), *MALFORMED):
        return


def failure(text: str) -> ModelError:
    """Return the exception to raise for an error that a server reports within a stream."""
    kind = ContextOverflow if _overlong(text) else ModelError
    return kind(redactor()(text))


def _transport_errors(kind: str = "HTTPError") -> tuple[type[Exception], ...]:
    # older SDKs pass these errors through while a reply streams; either package may be installed
    found: list[type[Exception]] = []
    for name in ("httpx", "httpx2"):
        try:
            found.append(getattr(importlib.import_module(name), kind))
        except ImportError:
            continue
    return tuple(found)


def _is_transient(error: Exception) -> bool:
    """Return True if a retry may avoid this error."""
    status = getattr(error, "status_code", None)
    if status is not None and status >= 400:
        return status in RETRIED and "insufficient_quota" not in str(error)
    # No error status: the connection failed, or a stream that began well contained an error such
    # as "overloaded".
    return not _overlong(str(error)) and not any(kind in str(error) for kind in PERMANENT)


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
        return ModelError(f"{where}: the account has no credit ({_reason(error)})")
    return ModelError(f"{where}: the server refused the request ({_reason(error)})")


def _overlong(text: str) -> bool:
    return any(part in text.lower() for part in OVERLONG)


def _stalled(error: Exception, sdk: ModuleType, endpoint: Endpoint) -> str:
    """Return a message for the user if the error is a time-out, else ""."""
    timeouts = (sdk.APITimeoutError, *_transport_errors("TimeoutException"))
    if not isinstance(error, timeouts):
        return ""
    if _unconnected(error):
        return "no connection to the server"
    return (
        f"no byte came for {endpoint.stall:g} s (if the model needs longer to think, raise "
        "--model-timeout)"
    )


def _unconnected(error: Exception) -> bool:
    """Return True if a time-out occurred while connecting, not while waiting for the reply."""
    return any("ConnectTimeout" in type(e).__name__ for e in (error, error.__cause__) if e)


def _reason(error: Exception) -> str:
    """Return the text of a server's error in one short line."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message") if isinstance(inner, dict) else str(inner)
    else:
        text = None
    status = getattr(error, "status_code", None)
    # a server may repeat the key that it refuses
    line = redactor()(" ".join(str(text or error or type(error).__name__).split())[:200])
    return f"{status}: {line}" if status else line


def _retry_after(error: Exception) -> float | None:
    """Return the seconds in the server's Retry-After header; None if it is absent or above 120."""
    response = getattr(error, "response", None)
    try:
        seconds = float(response.headers["retry-after"])  # type: ignore[union-attr]
    except (AttributeError, KeyError, ValueError):
        return None
    return seconds if 0 < seconds <= 120 else None
