"""Read the settings of a stage from a TOML file and `--set a.b=value`, and check them.

The frozen dataclasses of the stages are the schema. An unknown name or a value of another type is
refused with a message that lists the valid names.
"""

from __future__ import annotations

import json
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SEEDS = (0, 2**32 - 1)
"""Smallest and largest valid seed. Random generators accept 64 bits, and the code multiplies a seed
before use."""


class ConfigError(Exception):
    """Error: a setting has an unusable value.

    The message is one line with the setting's name, the reason and the valid values.
    """


def configure(default: T, file: Path | None, sets: Sequence[str]) -> T:
    """Return `default` changed by the settings in the TOML file and then by the assignments `sets`
    (`a.b=value`)."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
        except ValueError as error:  # not TOML, or not even text
            raise ConfigError(f"{file}: {error}") from error
    for assignment in sets:
        name, sign, text = assignment.partition("=")
        if not sign:
            raise ConfigError(f"--set {assignment}: write name=value, e.g. ppo.iterations=40")
        nested: Any = _value(text)
        for part in reversed(name.strip().split(".")):
            nested = {part: nested}
        values = _over(values, nested)
    # Apply all at once, because a check may compare a setting of the file with an assigned one.
    return overlay(default, values, "")


def overlay(default: T, values: Mapping[str, Any], where: str) -> T:
    """Return a copy of the dataclass `default` with the fields in `values` replaced, recursively.

    `where`: prefix of setting names in error messages. Raises ConfigError for an unknown name or a
    value of a wrong type.
    """
    hints = typing.get_type_hints(type(default))
    known = {f.name for f in fields(default)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f" (did you mean {where}{near[0]}?)" if near else ""
            every = ", ".join(sorted(known))
            raise ConfigError(f"no setting {where}{name}{meant}; there are {every}")
        present = getattr(default, name)
        if is_dataclass(present) and isinstance(value, Mapping):
            changed[name] = overlay(present, value, f"{where}{name}.")
        else:
            changed[name] = _fit(value, hints[name], f"{where}{name}")
    try:
        return replace(default, **changed)  # type: ignore[type-var]
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from error


def to_toml(settings: Any) -> str:
    """Return all settings as TOML text that `configure` can read. Settings that are None or ()
    become comments.

    Nested dataclasses become tables, whose names are written in full.
    """
    return "\n".join(_toml(settings, "")) + "\n"


def _toml(settings: Any, where: str) -> Iterator[str]:
    nested = []
    for one in fields(settings):
        value = getattr(settings, one.name)
        if is_dataclass(value):
            nested.append(one.name)
        elif value is None or value == ():
            yield f"# {one.name} = {'[]' if value == () else 'none'}"
        else:
            shown = list(value) if isinstance(value, tuple) else value
            yield f"{one.name} = {json.dumps(shown)}"
    for name in nested:
        yield f"\n[{where}{name}]"
        yield from _toml(getattr(settings, name), f"{where}{name}.")


def at_least(least: float, settings: Any, *names: str) -> None:
    """Check that the named settings are `least` or more. Raises ValueError that names the first one
    below."""
    _hold(lambda value: value >= least, f"{least} or more", settings, names)


def above(bound: float, settings: Any, *names: str) -> None:
    """Check that the named settings are greater than `bound`. Raises ValueError that names the
    first one that is not."""
    _hold(lambda value: value > bound, f"above {bound}", settings, names)


def below(bound: float, settings: Any, *names: str) -> None:
    """Check that the named settings are less than `bound`. Raises ValueError that names the first
    one that is not."""
    _hold(lambda value: value < bound, f"below {bound}", settings, names)


def between(least: float, most: float, settings: Any, *names: str) -> None:
    """Check that the named settings are from `least` to `most`, both included. Raises ValueError
    that names the first one that is not."""
    _hold(lambda value: least <= value <= most, f"from {least} to {most}", settings, names)


def _hold(good: Callable[[Any], bool], words: str, settings: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        # None is left to the type check. A comparison with NaN is False, so NaN is refused.
        if value is not None and not good(value):
            raise ValueError(f"{name}: {value} is not {words}")


def _over(values: Mapping[str, Any], nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested tables merged into one. Where both set the same name, the value of `nested`
    is used."""
    found = dict(values)
    for name, value in nested.items():
        tables = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = _over(found[name], value) if tables else value
    return found


def _value(text: str) -> Any:
    """Convert the text after `=` of a `--set` option to a value.

    `none` becomes None, text in TOML syntax is parsed, and any other text stays a string.
    """
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
            if not abs(value) <= sys.float_info.max:  # infinite or NaN
                raise ConfigError(f"{name}: {value} is not a finite number")
            return float(value)
        if isinstance(option, type) and issubclass(option, StrEnum) and isinstance(value, str):
            if value in list(option):
                return option(value)
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(option)}")
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            if not value:
                raise ConfigError(f"{name}: an empty list")
            return tuple(_fit(one, typing.get_args(option)[0], name) for one in value)
        if isinstance(option, type) and type(value) is option:
            return value
    words = " or ".join(getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(f"{name}: {json.dumps(value, default=str)} is not {words}")
