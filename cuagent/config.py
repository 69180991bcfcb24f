"""Determine the settings, and where each value comes from.

In order of precedence: flags, CUAGENT_* variables, the project's file (`.cuagent.toml`, or
`[tool.cuagent]` in pyproject.toml, in the current folder or the nearest one above it), the user's
file (`~/.config/cuagent/config.toml`), the defaults. API keys are not settings: they stay in the
variables that the providers define. A project's file comes with code of other people, so it may not
set everything:

- device, notify (`ALLOWED`): allowed
- max_steps, max_cost, max_time, max_device_time (`BUDGETS`): it may lower them; a higher value is
  ignored with a warning
- model, precision (`CONFIRMED`): used if the user agrees, which is remembered for this file and
  these values; otherwise ignored with a warning
- isolation, approval, notify_command, model_timeout, endpoints, prices (`PERSONAL`): an error

Invariant: an unknown key is an error; it is never ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

PREFIX = "CUAGENT_"
PROJECT_FILE = ".cuagent.toml"
LARGEST_FILE = 1 << 20
"""Largest size in bytes of a settings file; a larger one is an error."""
CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "precision": ("match", "fp32", "tf32", "bf16", "fp16"),
    "isolation": ("auto", "landlock", "none"),
    "approval": ("ask", "auto", "yolo"),
    "notify": ("auto", "bell", "off"),
}
TABLES = ("endpoints", "prices")
"""Keys whose value is a table: model servers, prices (`cuagent.models.servers`)."""
ALLOWED = ("device", "notify")
"""Keys that a project's file may set."""
PERSONAL = ("isolation", "approval", "notify_command", "model_timeout", *TABLES)
"""Keys that a project's file must not set.

With them it could weaken isolation, send an API key away, or cause costs.
"""
CONFIRMED = ("model", "precision")
"""Keys that need the user's consent: a model may cost money, a precision admits larger errors."""
BUDGETS = ("max_steps", "max_cost", "max_time", "max_device_time")
"""Keys that a project's file may only lower."""


class ConfigError(Exception):
    """A setting cannot be used. The message is one line: place, problem, remedy."""


@dataclass(frozen=True)
class Settings:
    """All settings.

    Each field is also a CUAGENT_* variable and a key in files, and most are flags.
    """

    model: str = "auto"
    """`auto`, `expert`, or the name of a provider's model; `auto` is `expert` if no API key is
    set.
    """
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    precision: str = "match"
    """Arithmetic that the arms may use.

    `match`: that of the torch settings of your own process. `fp32`: IEEE fp32 in all arms. `tf32`,
    `bf16` or `fp16`: that arithmetic in addition.
    """
    isolation: Literal["auto", "landlock", "none"] = "auto"
    """Isolation of untrusted code; `auto` is the strongest one that works on this machine."""
    approval: Literal["ask", "auto", "yolo"] = "auto"
    """Commands of the model that need the user's approval.

    `ask`: all commands. `auto`: commands that run without a sandbox. `yolo`: none.
    """
    notify: Literal["auto", "bell", "off"] = "auto"
    """Kind of notification when a run ends or waits; `auto` is the best that the terminal
    supports.
    """
    notify_command: str = ""
    """Program that is called with the text of each notification; "" for none."""
    model_timeout: float = 600.0
    """Seconds without a byte from the model's server after which the request is repeated.

    Keep-alive bytes count. Text may also be `90s`, `30m` or `1.5h`.
    """
    max_steps: int = 100
    max_cost: float = 5.0
    """Limit of a run's cost in US dollars."""
    max_time: float = 3600.0
    """Limit of a run's wall time in seconds; text may also be `90s`, `30m` or `1.5h`."""
    max_device_time: float = 3600.0
    """Limit in seconds of judging, timing and profiling in a run; text as for `max_time`."""
    endpoints: Mapping[str, Any] = field(default_factory=dict)
    """Settings of model servers, by the server's name; only from the user's file."""
    prices: Mapping[str, Any] = field(default_factory=dict)
    """Prices of models, by the model's name; only from the user's file."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Source of each setting's value, by key: the name of a flag or variable, a file, or
    "default".
    """
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Warning for each value of the project's file that was ignored, by key."""


TIMES = ("model_timeout", "max_time", "max_device_time")
"""Names of the settings that are times in seconds."""
TIME_FORMS = "a time above 0: 90s, 30m, 1.5h, or a plain number of seconds"


@dataclass(frozen=True)
class Proposal:
    """Values in a project's file that apply only if the user agrees."""

    file: Path
    values: Mapping[str, Any]

    def __str__(self) -> str:
        values = " and ".join(f"{key} = {str(value)!r}" for key, value in self.values.items())
        return f"{self.file} sets {values}, which is for you to decide"

    @property
    def digest(self) -> str:
        """Hash of the file's path and these values; the user's consent is stored under it."""
        text = json.dumps([str(self.file.resolve()), *sorted(map(str, self.values.items()))])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Layer = Mapping[str, tuple[Any, str]]
"""Values from one source of settings (a file, the variables), by key: (value, origin)."""
Accept = Callable[[Proposal], bool]
"""Function that asks the user for consent to the values of a project's file; True accepts them."""
KEYS = tuple(f.name for f in fields(Settings) if f.name not in ("origins", "ignored", *TABLES))


def refuse(proposal: Proposal) -> bool:
    """Return False: no proposal is accepted."""
    return False


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    accept: Accept = refuse,
) -> Settings:
    """Return the settings that apply in the folder `cwd`. Raises ConfigError.

    A flag that is None is unset. `accept` decides on values of the project's file that need
    consent. It is asked only about keys of `flags` whose value no flag or variable sets.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    above = _from_environment(environ) | {key: (value, _flag(key)) for key, value in given.items()}
    user, file = _from_file(_user_file(environ)), _project_file(cwd or Path.cwd())
    project, ignored = _from_project(file), {}
    if file is not None:
        proposed = [key for key in CONFIRMED if key in project and key not in above]
        proposed = [key for key in proposed if project[key][0] != _without_project(key, user)[0]]
        ignored = _raised_budgets(project, user)
        ignored |= _not_accepted(file, project, proposed, (flags or {}).keys(), accept)
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
    warnings = {key: line for key, line in ignored.items() if key not in above}
    return Settings(**values, origins=origins, ignored=warnings)


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found = {}
    for name, value in environ.items():
        key = name.removeprefix(PREFIX).lower()
        if key == name.lower() or not value:
            continue
        if key in KEYS:
            found[key] = (value, name)
        elif near := _near(key):
            # Other packages define variables with this prefix; only a near match is a typo.
            raise ConfigError(f"{name}: no such setting; did you mean {PREFIX}{near.upper()}?")
    return found


def _from_project(path: Path | None) -> dict[str, tuple[Any, str]]:
    found = _from_file(path)
    for key in found.keys() & set(PERSONAL):
        raise ConfigError(
            f"{path}: a project must not set {key}; put it into ~/.config/cuagent/config.toml"
            + (f" or {PREFIX}{key.upper()}" if key in KEYS else "")
        )
    return found


def _without_project(key: str, user: Layer) -> tuple[Any, str]:
    """Return (value, origin) of `key` without the project's file: the user's value or the
    default.
    """
    return user.get(key, (getattr(Settings, key), "default"))


def _raised_budgets(project: Layer, user: Layer) -> dict[str, str]:
    """Return a warning by key for each budget that the project's file sets higher than it may."""
    lines = {}
    for key in BUDGETS:
        if key not in project:
            continue
        value, file = project[key]
        limit, origin = _without_project(key, user)
        if _convert(key, value, file) > _convert(key, limit, origin):
            lines[key] = (
                f"{file}: {key} = {value!r} is ignored: a project may only lower it, and the limit "
                f"is {limit!r} ({origin}); raise it with {_flag(key)} or in your own config.toml"
            )
    return lines


def _not_accepted(
    file: Path, project: Layer, proposed: Sequence[str], flags: Set[str], accept: Accept
) -> dict[str, str]:
    """Ask for consent to the `proposed` keys; return a warning by key for each refused one.

    Only the keys among `flags` are asked for: the current command uses no others.
    """
    proposal = Proposal(file, {key: project[key][0] for key in proposed if key in flags})
    for key in proposed:  # Report invalid values before the user is asked.
        _convert(key, *project[key])
    if proposal.values and accept(proposal):
        proposed = [key for key in proposed if key not in flags]
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
        table = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML ({error}); correct it") from error
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: {why}; make it readable or remove it") from error
    for name in ("tool", "cuagent") if path.name == "pyproject.toml" else ():
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is no table; correct it")
    return table


def _project_file(cwd: Path) -> Path | None:
    for folder in _upward(cwd.resolve()):
        own, shared = folder / PROJECT_FILE, folder / "pyproject.toml"
        for path in (own, shared):
            if path.is_symlink() and (path == own or _has_table(path)):
                raise ConfigError(f"{path}: is a link; put the settings into a file of the project")
        if own.is_file():
            return own
        if shared.is_file() and _has_table(shared):
            return shared
    return None


def _has_table(pyproject: Path) -> bool:
    try:
        return "[tool.cuagent]" in _text(pyproject, errors="replace")
    except OSError:
        return False


def _text(path: Path, errors: str = "strict") -> str:
    """Return the text of a settings file.

    Raises OSError if it is not regular or exceeds LARGEST_FILE.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError("too large")
    return content.decode("utf-8", errors)


def _upward(folder: Path) -> Iterator[Path]:
    """Yield `folder` and its parents, up to the root of its repository."""
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
        # TOML values have types: refuse 1.5 for a count, 3 for a name and true for both.
        if not isinstance(value, str) and (isinstance(value, bool) or converted != value):
            raise ValueError
        if key in CHOICES and converted not in CHOICES[key]:
            raise ValueError
        if not isinstance(default, str) and not 0 < converted < float("inf"):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        texts = " or ".join(CHOICES.get(key, ("a text",)))
        expected = {str: texts, int: "a whole number above 0"}
        default_form = expected.get(type(default), "a number above 0")
        valid = TIME_FORMS if key in TIMES else default_form
        named = "" if origin == _flag(key) else f"{key} is "
        raise ConfigError(f"{origin}: {named}{value!r}; it takes {valid}") from None
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
