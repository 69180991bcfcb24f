"""Settings and where each of them comes from.

Flags go before CUAGENT_* variables, these before the project's file (`.cuagent.toml`, or
`[tool.cuagent]` in pyproject.toml, in the current folder or the nearest one above it), that before
the user's file (`~/.config/cuagent/config.toml`), that before the defaults. Keys of providers are
no settings: they stay in the variables that the providers themselves use.
Invariants: a key that nobody knows is refused, never ignored; a file that comes with somebody's
project neither lowers a guard nor names a program to run (`PERSONAL`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

PREFIX = "CUAGENT_"
PROJECT_FILE = ".cuagent.toml"
CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "precision": ("match", "tf32", "bf16", "fp16"),
    "isolation": ("auto", "landlock", "none"),
    "approval": ("ask", "auto", "yolo"),
    "notify": ("auto", "bell", "off"),
}
TABLES = ("endpoints", "prices")
"""Servers and prices of the user's own, as `cuagent.models.servers` describes them."""
PERSONAL = ("isolation", "approval", "notify_command", *TABLES)
"""What only the user decides: refused in a project's file, which might send a key elsewhere."""


class ConfigError(Exception):
    """A setting cannot be used. One line: where, what, what to do."""


@dataclass(frozen=True)
class Settings:
    """All settings; each field is a variable and a key of the same name, most are flags too."""

    model: str = "auto"
    """`auto`, `expert`, or a model of a provider; `auto` is `expert` where no key is set."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    precision: str = "match"
    """Arithmetic that the task admits: `match`, `tf32`, `bf16` or `fp16`."""
    isolation: Literal["auto", "landlock", "none"] = "auto"
    """How untrusted code is kept apart; `auto` is the strongest that holds here."""
    approval: Literal["ask", "auto", "yolo"] = "auto"
    """What is asked before a command of the model's runs: `ask` all, `auto` those that no sandbox
    holds, `yolo` none."""
    notify: Literal["auto", "bell", "off"] = "auto"
    """How a terminal tells that a run has ended or waits; `auto` takes what the terminal knows."""
    notify_command: str = ""
    """A program that is called with the same words."""
    model_timeout: float = 600.0
    """Seconds without a byte from the model's server (keep-alive bytes count) after which it is
    asked again; written like `max_time`."""
    max_steps: int = 100
    max_cost: float = 5.0
    """US dollars."""
    max_time: float = 3600.0
    """Seconds; in texts also `90s`, `30m`, `1.5h`."""
    max_device_time: float = 3600.0
    """Seconds in which something is judged, timed or profiled; written like `max_time`."""
    endpoints: Mapping[str, Any] = field(default_factory=dict)
    """Tables by the server's name; from the user's file alone."""
    prices: Mapping[str, Any] = field(default_factory=dict)
    """Tables by the model's name; from the user's file alone."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value comes from, by key."""


TIMES = ("model_timeout", "max_time", "max_device_time")
"""Settings that are times."""
TIME_FORMS = "a time above 0: 90s, 30m, 1.5h, or a plain number of seconds"
KEYS = tuple(f.name for f in fields(Settings) if f.name not in ("origins", *TABLES))


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Settings:
    """The settings that hold in `cwd`; flags that are None were not given. Raises ConfigError."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    user = _from_file(_user_file(environ))
    layers = [
        ({key: (value, _flag(key)) for key, value in given.items()}),
        _from_environment(environ),
        _from_project(_project_file(cwd or Path.cwd())),
        user,
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key in KEYS:
        value, origin = next(
            (layer[key] for layer in layers if key in layer), (getattr(Settings, key), "default")
        )
        values[key], origins[key] = _convert(key, value, origin), origin
    for key in TABLES:
        values[key], origins[key] = user.get(key, ({}, "default"))
        if not isinstance(values[key], dict):
            raise ConfigError(f"{origins[key]}: {key} is a table: write [{key}.NAME]")
    return Settings(**values, origins=origins)


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found = {}
    for name, value in environ.items():
        key = name.removeprefix(PREFIX).lower()
        if key == name.lower() or not value:
            continue
        if key in KEYS:
            found[key] = (value, name)
        elif near := _near(key):
            # other variables with our prefix belong to other rooms; a near miss is a slip
            raise ConfigError(f"{name}: no such setting; did you mean {PREFIX}{near.upper()}?")
    return found


def _from_project(path: Path | None) -> dict[str, tuple[Any, str]]:
    found = _from_file(path)
    for key in found.keys() & set(PERSONAL):
        raise ConfigError(
            f"{path}: {key} is not for a project to set; put it into ~/.config/cuagent/config.toml"
            + (f" or {PREFIX}{key.upper()}" if key in KEYS else "")
        )
    return found


def _from_file(path: Path | None) -> dict[str, tuple[Any, str]]:
    if path is None:
        return {}
    table = _read(path)
    for key in table:
        if key not in (*KEYS, *TABLES):
            near = _near(key)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
            raise ConfigError(f"{path}: no setting {key!r}; {hint}")
    return {key: (value, str(path)) for key, value in table.items()}


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML ({error}); correct it") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; make it readable or remove it") from error
    return table.get("tool", {}).get("cuagent", {}) if path.name == "pyproject.toml" else table


def _project_file(cwd: Path) -> Path | None:
    for folder in _upward(cwd.resolve()):
        own, shared = folder / PROJECT_FILE, folder / "pyproject.toml"
        if own.is_file():
            return own
        if shared.is_file() and "[tool.cuagent]" in shared.read_text("utf-8", errors="replace"):
            return shared
    return None


def _upward(folder: Path) -> Iterator[Path]:
    """The folder and those above it, up to the root of its repository."""
    for candidate in (folder, *folder.parents):
        yield candidate
        if (candidate / ".git").exists():
            return


def _user_file(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config"
    path = Path(home) / "cuagent" / "config.toml"
    return path if path.is_file() else None


def _convert(key: str, value: Any, origin: str) -> Any:
    default = getattr(Settings, key)
    try:
        if key in TIMES:
            return _seconds(value)
        converted = type(default)(value)
        # a file has types of its own: 1.5 is no count, 3 is no name and true is neither
        if not isinstance(value, str) and (isinstance(value, bool) or converted != value):
            raise ValueError
        if key in CHOICES and converted not in CHOICES[key]:
            raise ValueError
        if not isinstance(default, str) and not 0 < converted < float("inf"):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        texts = " or ".join(CHOICES.get(key, ("a text",)))
        what = {str: texts, int: "a whole number above 0"}
        wanted = TIME_FORMS if key in TIMES else what.get(type(default), "a number above 0")
        named = "" if origin == _flag(key) else f"{key} is "
        raise ConfigError(f"{origin}: {named}{value!r}; it takes {wanted}") from None
    return converted


def _seconds(value: Any) -> float:
    match = re.fullmatch(r"\s*([0-9.]+)\s*([smh]?)\s*", str(value))
    if match is None:
        raise ValueError(value)
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    if not 0 < seconds < float("inf"):
        raise ValueError(value)
    return seconds


def _near(key: str) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(key, KEYS, 1, 0.75)), None)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
