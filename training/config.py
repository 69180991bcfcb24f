"""Settings of a stage: a TOML file and `--set a.b=value`, checked against the frozen dataclasses.

The dataclasses of the stages are the schema: a name they do not have, or a value of another type,
is refused with a line that says what there is.
"""

from __future__ import annotations

import json
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SEEDS = (0, 2**32 - 1)
"""The bounds of a seed: generators take 64 bits, and it is multiplied on its way to them."""


class ConfigError(Exception):
    """A setting cannot be used. One line: which, why, what there is."""


def configure(default: T, file: Path | None, sets: Sequence[str]) -> T:
    """`default` with the file's tables and then the assignments laid over it."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # not TOML, or not even text
            raise ConfigError(f"{file}: {error}") from error
    for assignment in sets:
        name, sign, text = assignment.partition("=")
        if not sign:
            raise ConfigError(f"--set {assignment}: write name=value, e.g. ppo.iterations=40")
        nested: Any = _value(text)
        for part in reversed(name.strip().split(".")):
            nested = {part: nested}
        values = _over(values, nested)
    # At once: settings that must fit each other need not do so halfway.
    return overlay(default, values, "")


def overlay(default: T, values: Mapping[str, Any], where: str) -> T:
    """A copy of the dataclass with `values` in place of its own, recursively."""
    hints = typing.get_type_hints(type(default))
    known = {f.name for f in fields(default)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"no setting {where}{name}; there are {', '.join(sorted(known))}")
        present = getattr(default, name)
        if is_dataclass(present) and isinstance(value, Mapping):
            changed[name] = overlay(present, value, f"{where}{name}.")
        else:
            changed[name] = _fit(value, hints[name], f"{where}{name}")
    try:
        return replace(default, **changed)  # type: ignore[type-var]
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from error


def at_least(least: float, settings: Any, *names: str) -> None:
    """For `__post_init__` of settings. Raises ValueError that names the first that is less."""
    _hold(lambda value: value >= least, f"{least} or more", settings, names)


def above(bound: float, settings: Any, *names: str) -> None:
    """As `at_least`, but the bound itself is refused too."""
    _hold(lambda value: value > bound, f"above {bound}", settings, names)


def below(bound: float, settings: Any, *names: str) -> None:
    """As `at_least`, of what must stay under the bound."""
    _hold(lambda value: value < bound, f"below {bound}", settings, names)


def between(least: float, most: float, settings: Any, *names: str) -> None:
    """As `at_least`, with a most; both bounds are allowed."""
    _hold(lambda value: least <= value <= most, f"from {least} to {most}", settings, names)


def _hold(good: Callable[[Any], bool], words: str, settings: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        # None is for the types to refuse, "not a number" compares as no test asks
        if value is not None and not good(value):
            raise ValueError(f"{name}: {value} is not {words}")


def _over(values: Mapping[str, Any], nested: Mapping[str, Any]) -> dict[str, Any]:
    """Both, table by table; where they disagree, `nested`."""
    found = dict(values)
    for name, value in nested.items():
        tables = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = _over(found[name], value) if tables else value
    return found


def _value(text: str) -> Any:
    """`none` is None, what TOML reads is that, and everything else a string."""
    if text.strip().lower() == "none":
        return None
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _fit(value: Any, hint: Any, name: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is type(None) and value is None:
            return None
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:  # nor is it "not a number"
                raise ConfigError(f"{name}: {value} is not a finite number")
            return float(value)
        if isinstance(option, type) and issubclass(option, StrEnum) and isinstance(value, str):
            if value in list(option):
                return option(value)
            raise ConfigError(f"{name}: {value!r} is none of {', '.join(option)}")
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            if not value:
                raise ConfigError(f"{name}: an empty list")
            return tuple(_fit(one, typing.get_args(option)[0], name) for one in value)
        if isinstance(option, type) and type(value) is option:
            return value
    words = " or ".join(getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(f"{name}: {json.dumps(value, default=str)} is not {words}")
