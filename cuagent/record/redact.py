"""Secrets out of everything that is written: known forms of keys, and this process's own.

Not covered: a secret that neither looks like one nor stands in an environment variable whose name
says so; an encoded or split one.
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
"""Names of environment variables whose values are secret."""
SHORTEST_VALUE = 8
"""Characters; shorter values (`TOKENIZERS_PARALLELISM=false`) are words, not secrets."""
NOTHING = r"(?!)"
"""A pattern that matches nothing."""
FORMS = re.compile(
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
    """Whether an environment variable of this name is kept from tools and logs."""
    return SECRET_NAME.search(name) is not None


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[Any], Any]:
    """A function that masks secrets in all strings of a plain value.

    The environment is read once, when the redactor is made.
    """
    values = {
        value
        for name, value in environment.items()
        if is_secret_name(name) and len(value) >= SHORTEST_VALUE
    }
    # as they stand within JSON, which is what the arguments of a call are
    values |= {json.dumps(value)[1:-1] for value in values}
    # a value that contains another is masked whole
    own = re.compile(
        "|".join(re.escape(v) for v in sorted(values, key=len, reverse=True)) or NOTHING
    )

    def redact(value: Any) -> Any:
        if isinstance(value, str):
            return FORMS.sub(MASK, own.sub(MASK, value))
        if isinstance(value, dict):
            return {redact(key): redact(item) for key, item in value.items()}
        if isinstance(value, list):
            return [redact(item) for item in value]
        return value

    return redact
