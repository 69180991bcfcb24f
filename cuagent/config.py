"""Settings and where each of them comes from.

Flags go before CUAGENT_* variables, these before the project's file (`.cuagent.toml`, or
`[tool.cuagent]` in pyproject.toml, in the current folder or the nearest one above it), that before
the user's file (`~/.config/cuagent/config.toml`), that before the defaults. Keys of providers are
no settings: they stay in the variables that the providers themselves use.
A project's file comes with somebody's code, so it may not set everything:

- device, notify: it may
- max_steps, max_cost, max_time, max_device_time (`BUDGETS`): it may lower them; a higher value is
  ignored with a warning
- model, precision (`CONFIRMED`): they hold if the user agrees, which is remembered for this file
  and these values; else they are ignored with a warning
- isolation, approval, notify_command, endpoints, prices (`PERSONAL`): refused

Invariant: a key that nobody knows is refused, never ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
CONFIRMED = ("model", "precision")
"""What a project's file proposes: the one may cost money, the other admits worse arithmetic."""
BUDGETS = ("max_steps", "max_cost", "max_time", "max_device_time")
"""What a project's file may only lower."""


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
    ignored: Mapping[str, str] = field(default_factory=dict)
    """What the project's file sets and does not hold, by key: a line for the user."""


TIMES = ("model_timeout", "max_time", "max_device_time")
"""Settings that are times."""
TIME_FORMS = "a time above 0: 90s, 30m, 1.5h, or a plain number of seconds"


@dataclass(frozen=True)
class Proposal:
    """What a project's file sets though it is for the user to decide."""

    file: Path
    values: Mapping[str, Any]

    def __str__(self) -> str:
        said = " and ".join(f"{key} = {str(value)!r}" for key, value in self.values.items())
        return f"{self.file} sets {said}, which is for you to decide"

    @property
    def digest(self) -> str:
        """Names this file with these values."""
        text = json.dumps([str(self.file.resolve()), *sorted(map(str, self.values.items()))])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Layer = Mapping[str, tuple[Any, str]]
"""Values with their origins, by key."""
Accept = Callable[[Proposal], bool]
"""Whether what a project's file proposes holds."""
KEYS = tuple(f.name for f in fields(Settings) if f.name not in ("origins", "ignored", *TABLES))


def refuse(proposal: Proposal) -> bool:
    """Accept nothing."""
    return False


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    accept: Accept = refuse,
) -> Settings:
    """The settings that hold in `cwd`; flags that are None were not given. Raises ConfigError.

    `accept` is asked of what the project's file sets for the user, of the keys of `flags` and where
    no flag or variable says otherwise.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    above = _from_environment(environ) | {key: (value, _flag(key)) for key, value in given.items()}
    user, file = _from_file(_user_file(environ)), _project_file(cwd or Path.cwd())
    project, ignored = _from_project(file), {}
    if file is not None:
        proposed = [key for key in CONFIRMED if key in project and key not in above]
        proposed = [key for key in proposed if project[key][0] != _otherwise(key, user)[0]]
        ignored = _too_high(project, user)
        ignored |= _not_agreed(file, project, proposed, (flags or {}).keys(), accept)
    layers = [above, {k: v for k, v in project.items() if k not in ignored}, user]
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
    told = {key: line for key, line in ignored.items() if key not in above}
    return Settings(**values, origins=origins, ignored=told)


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


def _otherwise(key: str, user: Layer) -> tuple[Any, str]:
    """What would hold without the project's file."""
    return user.get(key, (getattr(Settings, key), "default"))


def _too_high(project: Layer, user: Layer) -> dict[str, str]:
    """The budgets that a project's file would raise, each with a line that says so."""
    lines = {}
    for key in BUDGETS:
        if key not in project:
            continue
        value, file = project[key]
        limit, origin = _otherwise(key, user)
        if _convert(key, value, file) > _convert(key, limit, origin):
            lines[key] = (
                f"{file}: {key} = {value!r} is ignored: a project may only lower it, and it is "
                f"{limit!r} ({origin}); raise it with {_flag(key)} or in your own config.toml"
            )
    return lines


def _not_agreed(
    file: Path, project: Layer, proposed: Sequence[str], asked: Set[str], accept: Accept
) -> dict[str, str]:
    """What does not hold of `proposed`, each with a line; only of `asked` can it be agreed to."""
    wanted = Proposal(file, {key: project[key][0] for key in proposed if key in asked})
    for key in proposed:  # what cannot be used is said before anybody is asked
        _convert(key, *project[key])
    if wanted.values and accept(wanted):
        proposed = [key for key in proposed if key not in asked]
    return {
        key: f"{file}: {key} = {project[key][0]!r} is ignored: that is for you to decide; set it "
        f"with {_flag(key)} or {PREFIX}{key.upper()}, or accept it with --trust"
        for key in proposed
    }


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
