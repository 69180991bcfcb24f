"""Store which options won and lost for a captured module, for later runs of an equal module.

Equal modules have the same operators, shapes and dtypes, on the same machine and device, with the
same versions of torch and of this package. The names of parameters and the values do not matter. A
memory changes the order of the search alone: the options that won before are tried first, and
options that lost to them are omitted. Every candidate is still verified and timed. Memories are
files in the user's cache; a file that cannot be read is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.expert.capture.export import Captured
from cuagent.expert.search.memory import Memory
from cuagent.expert.search.outcomes import Outcome, best_of

if TYPE_CHECKING:
    from cuagent.expert.capture.subject import Subject

FORMAT = 2
"""Version of the memory files and their keys; increase it when an option changes its meaning."""
LARGEST_FILE = 1 << 20
"""Largest size in bytes of a memory file that is read."""


def folder_of_user() -> Path:
    """Return the path of the folder with memories in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cuagent" / "tuning"


def recalled(subject: Subject, folder: Path | None) -> Memory:
    """Return the stored memory for an equal module; an empty one if none is stored."""
    if folder is None:
        return Memory()
    try:
        with _file(subject, folder).open("rb") as file:
            return Memory.from_json(json.loads(file.read(LARGEST_FILE)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Memory()


def remember(subject: Subject, folder: Path | None, outcomes: Sequence[Outcome]) -> None:
    """Store the options that won and lost in a run; nothing if no candidate was accepted."""
    best = best_of(outcomes)
    if folder is None or best is None:
        return
    before = recalled(subject, folder)
    slower = {
        o.candidate.options for o in outcomes if not o.accepted or o.speedup < best.lower_limit
    }
    kept = (before.slower | slower) - {best.candidate.options}
    memory = Memory(best.candidate.options, frozenset(kept))
    file = _file(subject, folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(memory.to_json()), "utf-8")
        partial.replace(file)
    except OSError:
        return  # the next run searches again


def _file(subject: Subject, folder: Path) -> Path:
    return folder / f"{key(subject)}.json"


def key(subject: Subject) -> str:
    """Return a hash that is equal for equal modules on this machine."""
    import torch

    from cuagent import __version__
    from cuagent.measure.roofline.ceilings import describe
    from cuagent.task import Device

    machine = describe(Device(subject.device))
    about = (FORMAT, subject.target, machine, torch.__version__, __version__)
    text = repr((about, graph_text(subject)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def graph_text(subject: Subject) -> str:
    """Return the captured operators as text, with numbers in place of the names of values."""
    parts = [part for part in (subject.captured, subject.backward) if part is not None]
    return "\n".join(map(_graph_text, parts))


def _graph_text(captured: Captured) -> str:
    numbers: dict[str, str] = {}
    lines = []

    def word(value: Any) -> str:
        if hasattr(value, "meta"):
            return numbers.get(value.name, "?")
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(word, value))}]"
        return repr(value)

    for fx in captured.nodes:
        numbers[fx.name] = f"v{len(numbers)}"
        value = fx.meta.get("val")
        values = value if isinstance(value, list | tuple) else [value]
        made = [f"{getattr(v, 'dtype', '')}{list(getattr(v, 'shape', ()))}" for v in values]
        given = [word(arg) for arg in fx.args]
        given += [f"{name}={word(arg)}" for name, arg in sorted(fx.kwargs.items())]
        kind = "parameter" if fx.name in captured.parameters else fx.op
        target = str(fx.target) if fx.op == "call_function" else ""
        lines.append(f"{kind} {target}({', '.join(given)}) {' '.join(made)}")
    return "\n".join(lines)
