"""The README of a package of a captured module."""

from __future__ import annotations

from typing import Any

from blocks import DOMAIN, TASK

from cuagent.package import Captured
from cuagent.package.readme import _verified


def lines(call: dict[str, Any] | None, autocast: str | None = None) -> str:
    captured = Captured("net.block", "Block", call, autocast)
    return "\n".join(_verified(TASK, None, DOMAIN, captured, trains=False))


def test_the_recorded_call_is_shown_with_its_other_arguments() -> None:
    tensor = {"tensor": 0}
    named = {"residual": tensor, "extra": {"dict": {"pair": {"tuple": [tensor, {"const": 2}]}}}}
    text = lines({"inputs": 1, "positional": [tensor], "named": named})
    assert "The call: `block(x, residual=x, extra={'pair': (x, 2)})`." in text
    assert "The call" not in lines(None)


def test_calls_under_autocast_say_so() -> None:
    assert "under autocast to bfloat16" in lines(None, "bfloat16")
    assert "without autocast" in lines(None)
