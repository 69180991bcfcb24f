"""Mask secrets before values are written: keys of known formats, and values of secret environment
variables.

Not covered: a secret of unknown format that is not the value of a variable named like a secret; a
secret that is encoded or split.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

MASK = "[secret]"
SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|WEBHOOK", re.IGNORECASE
)
"""Pattern of the names of environment variables whose values are secret."""
MIN_SECRET_LENGTH = 8
"""Least number of characters of an environment variable's value that is masked. Shorter values are
rarely secrets: the name of `TOKENIZERS_PARALLELISM=false` matches too."""
NEVER_MATCHES = r"(?!)"
KNOWN_FORMATS = re.compile(
    r"(?<![\w+/-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, OpenRouter
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[A-Za-z0-9_-]{35}"
    r"|AKIA[0-9A-Z]{16}(?![\w+/=])"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r")"
    r"|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"  # name:password@host
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Return True if an environment variable with this name probably has a secret value."""
    return SECRET_NAME.search(name) is not None


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[Any], Any]:
    """Return a function that masks the secrets in all strings of a JSON value.

    `environment` is read once, here.
    """
    values = {
        value
        for name, value in environment.items()
        if is_secret_name(name) and len(value) >= MIN_SECRET_LENGTH
    }
    # The arguments of a tool call are JSON text, so mask the JSON-escaped forms too.
    values |= {json.dumps(value)[1:-1] for value in values}
    # Longest first: a value that contains another one is masked as a whole.
    environment_values = re.compile(
        "|".join(re.escape(v) for v in sorted(values, key=len, reverse=True)) or NEVER_MATCHES
    )

    def redact(value: Any) -> Any:
        if isinstance(value, str):
            return KNOWN_FORMATS.sub(MASK, environment_values.sub(MASK, value))
        if isinstance(value, dict):
            return {redact(key): redact(item) for key, item in value.items()}
        if isinstance(value, list):
            return [redact(item) for item in value]
        return value

    return redact
