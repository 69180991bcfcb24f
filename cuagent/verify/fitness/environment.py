"""What a module sees of the world beside its inputs: clock, process number, files. Set ahead here.

While `set_ahead` holds, Python's clocks and the number of the process answer by `World.ahead` more
than they should, what the user's files asked for is noted, and so are the files that are opened. A
module must be imported meanwhile to be seen through `from time import time` as well. Not covered:
clocks that C code reads by itself.
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
NUMBERS = ("getpid", "getppid")


@dataclass
class Environment:
    """`folder` is where the user's files are."""

    folder: Path
    prefetcher: int = 0
    """Seconds, and process numbers."""
    read: set[str] = field(default_factory=set)
    """What the user's files have asked for so far, as they call it: `time.time`."""
    opened: list[str] = field(default_factory=list)
    """Files, while `listening`."""
    listening: bool = False

    def note(self, name: str, depth: int) -> None:
        """Note who asked, `depth` calls up from here."""
        if of_the_user(sys._getframe(depth + 1).f_code.co_filename, self.folder):
            self.read.add(name)


def of_the_user(file: str, folder: Path) -> bool:
    """Whether it lies in the user's folder, and in no environment that may lie there as well."""
    inside = file.startswith(f"{folder}{os.sep}")
    return inside and not any(name in file for name in ("site-packages", "dist-packages"))


class _Replaced:
    """In place of a builtin function: like one, it is not bound when it is a class's attribute."""

    def __init__(self, environment: Environment, name: str, answer: Callable[..., Any]) -> None:
        self.environment, self.name, self.answer = environment, name, answer

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.environment.note(self.name, 1)
        return self.answer(*args, **named)


@contextmanager
def set_ahead(folder: Path) -> Iterator[Environment]:
    """All of it, until the block ends."""
    environment = Environment(folder)
    with ExitStack() as stack:
        for owner, name, replacement in _replacements(environment):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield environment


def _replacements(environment: Environment) -> Iterator[tuple[Any, str, Any]]:
    for name in CLOCKS:
        seconds, nanoseconds = getattr(time, name), getattr(time, f"{name}_ns")
        yield time, name, _Replaced(environment, f"time.{name}", _later(environment, seconds, 1))
        ns = _later(environment, nanoseconds, 10**9)
        yield time, f"{name}_ns", _Replaced(environment, f"time.{name}_ns", ns)
    for name in CALENDARS:
        answer = _on_the_day(environment, getattr(time, name), time.time)
        yield time, name, _Replaced(environment, f"time.{name}", answer)
    for name in NUMBERS:
        yield (
            os,
            name,
            _Replaced(environment, f"os.{name}", _later(environment, getattr(os, name), 1)),
        )
    yield datetime, "datetime", _datetime(environment)
    yield datetime, "date", _date(environment)
    for owner in (builtins, io):
        yield owner, "open", _opening(environment, owner.open)


def _later(environment: Environment, real: Callable[[], Any], unit: int) -> Callable[[], Any]:
    return lambda: real() + environment.prefetcher * unit


def _on_the_day(
    environment: Environment, real: Callable[[float], Any], now: Callable[[], float]
) -> Callable[..., Any]:
    return lambda seconds=None: real(now() + environment.prefetcher if seconds is None else seconds)


def _datetime(environment: Environment) -> type[datetime.datetime]:
    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Moved:
            environment.note("datetime.now", 1)
            return super().now(tz) + datetime.timedelta(seconds=environment.prefetcher)

        @classmethod
        def utcnow(cls) -> Moved:
            environment.note("datetime.utcnow", 1)
            return super().utcnow() + datetime.timedelta(seconds=environment.prefetcher)

        @classmethod
        def today(cls) -> Moved:
            environment.note("datetime.today", 1)
            return super().today() + datetime.timedelta(seconds=environment.prefetcher)

    return Moved


def _date(environment: Environment) -> type[datetime.date]:
    class Moved(datetime.date):
        @classmethod
        def today(cls) -> Moved:
            environment.note("date.today", 1)
            return super().today() + datetime.timedelta(seconds=environment.prefetcher)

    return Moved


def _opening(environment: Environment, real: Callable[..., Any]) -> Callable[..., Any]:
    def opening(file: Any, *args: Any, **named: Any) -> Any:
        if environment.listening:
            environment.opened.append(str(file))
        return real(file, *args, **named)

    return opening
