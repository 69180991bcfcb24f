"""Make texts, names and arguments of earlier replies valid for the providers' requests.

A provider rejects a request that contains a malformed earlier call. So the texts are corrected in
the request; the log keeps the model's own bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST_NAME = 64
"""Largest number of characters of a tool name or call id that all providers accept."""


def clean(text: str) -> str:
    """Replace characters that cannot be sent: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def tool_name(name: str) -> str:
    """Replace all characters other than letters, digits, `_` and `-`."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LONGEST_NAME] or "unnamed"


def call_id(id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", id)[:LONGEST_NAME] or "call"


def arguments(raw: str) -> dict[str, Any]:
    """Parse a call's arguments; a text that is not a JSON object becomes {"malformed": text}."""
    try:
        value = json.loads(clean(raw) or "{}")
    except (ValueError, RecursionError):
        return {"malformed": clean(raw)}
    return value if isinstance(value, dict) else {"malformed": clean(raw)}


def cached(details: Any) -> tuple[int, int]:
    """Return (tokens read from the cache, tokens written to it) from OpenAI's token details."""
    read = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    return read, written
