"""Make texts, names and arguments of earlier replies valid for the providers' requests.

The log keeps the model's bytes. They are corrected only in the request, so that one malformed call
does not make every later request fail.
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
    """Parse the arguments; wrap a text that is not a JSON object into one."""
    try:
        value = json.loads(clean(raw) or "{}")
    except (ValueError, RecursionError):
        return {"malformed": clean(raw)}
    return value if isinstance(value, dict) else {"malformed": clean(raw)}


def cached(details: Any) -> tuple[int, int]:
    """Return the tokens read from and written to the cache, by OpenAI's details of the input."""
    read = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    return read, written
