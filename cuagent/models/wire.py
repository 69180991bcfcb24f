"""What both providers demand of texts, names and arguments, whatever a model once wrote.

The log keeps the model's bytes; here they are made acceptable on their way back, so that one
malformed call does not make every later request fail.
"""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST_NAME = 64


def clean(text: str) -> str:
    """The text without what cannot be sent: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def tool_name(name: str) -> str:
    """The name with letters, digits, `_` and `-` alone."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LONGEST_NAME] or "unnamed"


def call_id(id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", id)[:LONGEST_NAME] or "call"


def arguments(raw: str) -> dict[str, Any]:
    """The arguments as an object; what is not one is put in one."""
    try:
        value = json.loads(clean(raw) or "{}")
    except (ValueError, RecursionError):
        return {"malformed": clean(raw)}
    return value if isinstance(value, dict) else {"malformed": clean(raw)}


def cached(details: Any) -> tuple[int, int]:
    """Tokens read from and written to the cache, where OpenAI's details of the input tell."""
    read = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    return read, written
