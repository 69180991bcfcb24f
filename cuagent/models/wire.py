"""Make texts, names and arguments of earlier replies valid for the providers' requests.

A provider rejects a request that contains a malformed earlier call. So the texts are corrected in
the request; the log keeps the model's own bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST_NAME = 64
"""Largest number of characters that all providers accept in a tool name or call id."""


def clean(text: str) -> str:
    """Replace characters that a provider rejects: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def tool_name(name: str) -> str:
    """Replace all characters except letters, digits, `_` and `-`, and shorten to LONGEST_NAME."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LONGEST_NAME] or "unnamed"


def call_id(id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", id)[:LONGEST_NAME] or "call"


def arguments(raw: str) -> dict[str, Any]:
    """Parse the arguments of a tool call; a text that is no JSON object becomes {"malformed":
    text}."""
    try:
        value = json.loads(clean(raw) or "{}")
    except (ValueError, RecursionError):
        return {"malformed": clean(raw)}
    return value if isinstance(value, dict) else {"malformed": clean(raw)}


def cached(details: Any) -> tuple[int, int]:
    """Return (tokens read from the cache, tokens written to the cache) from OpenAI's token
    details."""
    read = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    return read, written
