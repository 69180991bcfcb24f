"""Options of candidates that won or lost for an equal module in earlier runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cuagent.expert.options import Options

LARGEST_OPTION = 1 << 16
"""Largest value of a numeric option that is accepted from a memory file."""


@dataclass(frozen=True)
class Memory:
    """Options that earlier runs of an equal module tried."""

    first: Options | None = None
    """Options of the best candidate; None without one."""
    slower: frozenset[Options] = frozenset()
    """Options of candidates that were rejected, or surely slower than `first`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "first": _plain(self.first) if self.first else None,
            "slower": sorted((_plain(options) for options in self.slower), key=repr),
        }

    @staticmethod
    def from_json(data: Any) -> Memory:
        """Return the memory from the JSON that `to_json` wrote.

        Raises KeyError, TypeError or ValueError for other data.
        """
        first = data["first"]
        return Memory(
            _options(first) if first else None, frozenset(_options(o) for o in data["slower"])
        )


def _plain(options: Options) -> dict[str, Any]:
    return asdict(options) | {"keep": sorted(options.keep)}


def _options(data: Mapping[str, Any]) -> Options:
    if set(data) != {field.name for field in fields(Options)}:
        raise ValueError("options of another version")
    for each in fields(Options):
        if not _is_valid(each.name, data[each.name], each.default):
            raise ValueError(f"{each.name}: not a value of this option")
    return Options(**{**data, "keep": frozenset(data["keep"])})


def _is_valid(name: str, value: Any, default: Any) -> bool:
    """Return True if `value` has the type of option `name`; options become part of generated
    code.
    """
    if name == "keep":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(value, str):
        return isinstance(default, str) and re.fullmatch(r"[\w-]*", value, re.ASCII) is not None
    if isinstance(value, bool):
        return default is None or isinstance(default, bool)
    if value is None:
        return default is None
    return type(default) is int and type(value) is int and 0 <= value <= LARGEST_OPTION
