"""Shift the clocks and process numbers that a module reads, and record what it reads.

Within `shifted_environment`, Python's clocks and process numbers return values that are larger by
`Environment.offset_s`. The calls of the user's files to them are recorded, and so are opened files.
The module must be imported inside the context, so that `from time import time` is covered. Not
covered: clocks that C code reads directly.
"""

from __future__ import annotations

import builtins
import datetime
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CALENDARS = ("localtime", "gmtime", "ctime")
PROCESS_NUMBERS = ("getpid", "getppid")


@dataclass
class Environment:
    """Offset of clocks and process numbers, and recorded reads by the files in `folder`."""

    folder: Path
    offset_s: int = 0
    """Number that is added to all clocks (in seconds) and to process numbers."""
    read: set[str] = field(default_factory=set)
    """Functions that the user's files have called so far, by name: `time.time`."""
    opened: list[str] = field(default_factory=list)
    """Files opened while `recording`."""
    recording: bool = False

    def note(self, name: str, depth: int) -> None:
        """Record a call of the function `name` if its caller is one of the user's files.

        The caller is `depth` frames up the stack.
        """
        if is_user_file(sys._getframe(depth + 1).f_code.co_filename, self.folder):
            self.read.add(name)


def is_user_file(file: str, folder: Path) -> bool:
    """Return True if the file is in the user's folder, but not in a Python environment there."""
    inside = file.startswith(f"{folder}{os.sep}")
    return inside and not any(name in file for name in ("site-packages", "dist-packages"))


class _Replacement:
    """Callable object in place of a builtin function such as `time.time`.

    Like a builtin, and unlike a Python function, it does not become a method as a class attribute.
    """

    def __init__(self, environment: Environment, name: str, answer: Callable[..., Any]) -> None:
        self.environment, self.name, self.answer = environment, name, answer

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.environment.note(self.name, 1)
        return self.answer(*args, **named)


@contextmanager
def shifted_environment(folder: Path) -> Iterator[Environment]:
    """Context in which clocks, process numbers and `open` are replaced by recording versions."""
    environment = Environment(folder)
    with ExitStack() as stack:
        for owner, name, replacement in _replacements(environment):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield environment


def _replacements(environment: Environment) -> Iterator[tuple[Any, str, Any]]:
    for name in CLOCKS:
        seconds, nanoseconds = getattr(time, name), getattr(time, f"{name}_ns")
        yield (
            time,
            name,
            _Replacement(environment, f"time.{name}", _shifted(environment, seconds, 1)),
        )
        ns = _shifted(environment, nanoseconds, 10**9)
        yield time, f"{name}_ns", _Replacement(environment, f"time.{name}_ns", ns)
    for name in CALENDARS:
        answer = _shifted_calendar(environment, getattr(time, name), time.time)
        yield time, name, _Replacement(environment, f"time.{name}", answer)
    for name in PROCESS_NUMBERS:
        yield (
            os,
            name,
            _Replacement(environment, f"os.{name}", _shifted(environment, getattr(os, name), 1)),
        )
    yield datetime, "datetime", _datetime(environment)
    yield datetime, "date", _date(environment)
    for owner in (builtins, io):
        yield owner, "open", _recording_open(environment, owner.open)


def _shifted(environment: Environment, real: Callable[[], Any], unit: int) -> Callable[[], Any]:
    return lambda: real() + environment.offset_s * unit


def _shifted_calendar(
    environment: Environment, real: Callable[[float], Any], now: Callable[[], float]
) -> Callable[..., Any]:
    return lambda seconds=None: real(now() + environment.offset_s if seconds is None else seconds)


def _datetime(environment: Environment) -> type[datetime.datetime]:
    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            environment.note("datetime.now", 1)
            return super().now(tz) + datetime.timedelta(seconds=environment.offset_s)

        @classmethod
        def utcnow(cls) -> Shifted:
            environment.note("datetime.utcnow", 1)
            return super().utcnow() + datetime.timedelta(seconds=environment.offset_s)

        @classmethod
        def today(cls) -> Shifted:
            environment.note("datetime.today", 1)
            return super().today() + datetime.timedelta(seconds=environment.offset_s)

    return Shifted


def _date(environment: Environment) -> type[datetime.date]:
    class Shifted(datetime.date):
        @classmethod
        def today(cls) -> Shifted:
            environment.note("date.today", 1)
            return super().today() + datetime.timedelta(seconds=environment.offset_s)

    return Shifted


def _recording_open(environment: Environment, real: Callable[..., Any]) -> Callable[..., Any]:
    def recording_open(file: Any, *args: Any, **named: Any) -> Any:
        if environment.recording:
            environment.opened.append(str(file))
        return real(file, *args, **named)

    return recording_open
