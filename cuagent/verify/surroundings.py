"""Find code by which an attempt may examine the process that runs it, for a note in its verdict.

A verdict covers calls in the worker. Code that reads the environment, the clock, files or its
caller can behave otherwise where it is installed, and no test in the worker shows that. The search
finds plain uses for a human reader, and rejects nothing. Not covered: hidden uses (names built at
run time, assembly, system calls by number, uninitialised memory, the number of calls).
"""

from __future__ import annotations

import ast
import re

from cuagent.attempt import Attempt
from cuagent.task.source import parse_python

NOTE = "its text reads its surroundings"
"""First words of the note in a verdict on code that may examine the process that runs it."""
MODULES = frozenset(
    (
        *("os", "sys", "time", "datetime", "inspect", "socket", "subprocess"),
        *("threading", "signal", "multiprocessing", "ctypes", "gc", "platform", "importlib"),
        *("pathlib", "shutil", "atexit", "tempfile", "traceback", "resource", "pickle"),
        *("marshal", "urllib", "http", "builtins", "glob", "io", "getpass"),
        *("psutil", "requests"),
    )
)
NAMES = frozenset({"open", "exec", "eval", "__import__", "__file__", "breakpoint"})
KERNELS = "cuagent.kernels"
_CALLS = re.compile(
    r"\b((?:secure_)?getenv|environ|dlopen|dlsym|dladdr|popen|system|v?fork|exec[lv]p?e?|fopen"
    r"|readlink|getp?pid|gettid|clock_gettime|gettimeofday|__rdtsc|syscall|isatty|getauxval|uname"
    r"|getcwd|backtrace)\s*\(|\b(std::(?:chrono|filesystem|random_device)|[io]?fstream)\b"
)
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def surroundings(attempt: Attempt) -> tuple[str, ...]:
    """Return the modules, names and functions by which the attempt may learn where it runs."""
    found: set[str] = set()
    for name, text in attempt.files:
        found |= _python(text) if name.endswith(".py") else _compiled(text)
    return tuple(sorted(found))


def note(attempt: Attempt, task: str = "") -> str:
    """Return the note for a verdict; "" if the attempt uses nothing of this kind.

    `task`: the text of the task's file. The note says if that uses all of it too.
    """
    found = surroundings(attempt)
    if not found:
        return ""
    shared = ", as the task's file does" if set(found) <= _python(task) else ""
    names = ", ".join(found)
    return f"{NOTE} ({names}{shared}): read it before you install it (docs/concepts/trust.md)"


def _python(text: str) -> set[str]:
    try:
        tree = parse_python(text)
    except SyntaxError:
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(name.name for name in names if _is_outside(name.name))
            case ast.ImportFrom(module=str(module)) if _is_outside(module):
                found.add(module)
            case ast.Name(id=name) if name in NAMES:
                found.add(name)
    return found


def _is_outside(module: str) -> bool:
    package = module.partition(".")[0]
    return package in MODULES or (package == "cuagent" and module != KERNELS)


def _compiled(text: str) -> set[str]:
    plain = _COMMENTS.sub(" ", text)
    return {match[1] or match[2] for match in _CALLS.finditer(plain)}
