"""How a command ends: the exit codes, and every error as one line on stderr.

0    it ended normally: accepted, or a run that ended by itself, with a gain or without
1    rejected, or the run failed
2    usage: an argument, a file or a setting that cannot be used
3    infrastructure: nobody's fault (no worker, no provider, a defect of cuagent's own)
130  interrupted
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    OK = 0
    NO = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130


class Refused(Exception):
    """What was asked cannot be done as asked. One line: what, where, what to do."""


class Crash(Exception):
    """A defect of cuagent. One line that says where the traceback is."""


FORESEEN = {
    "Refused": Exit.USAGE,
    "AttemptError": Exit.USAGE,
    "CandidateFault": Exit.NO,
    "ConfigError": Exit.USAGE,
    "EngineError": Exit.INFRASTRUCTURE,
    "EvidenceError": Exit.USAGE,
    "ExportError": Exit.USAGE,
    "RecordError": Exit.USAGE,
    "TaskError": Exit.USAGE,
    "ModelUnavailable": Exit.INFRASTRUCTURE,
    "ModelError": Exit.NO,
    "ProfileError": Exit.NO,
    "CompilerMissing": Exit.INFRASTRUCTURE,
    "Crash": Exit.INFRASTRUCTURE,
    "JudgeLost": Exit.INFRASTRUCTURE,
    "CudaMemoryError": Exit.INFRASTRUCTURE,
    "ForkServerError": Exit.INFRASTRUCTURE,
    "OracleLost": Exit.INFRASTRUCTURE,
    "SandboxError": Exit.INFRASTRUCTURE,
}
"""The rooms' own errors, whose text is a line for the user; by name, to import none of them."""


def exit_for(error: BaseException) -> Exit | None:
    """The exit code of an error that was foreseen; None for any other."""
    for kind in type(error).__mro__:
        if kind.__module__.startswith("cuagent.") and kind.__name__ in FORESEEN:
            return FORESEEN[kind.__name__]
    return None


def complain(text: str) -> None:
    """One line on stderr."""
    from cuagent.ui.text import one_line

    print(f"cuagent: {one_line(text)}", file=sys.stderr, flush=True)


@contextmanager
def crashes_to(folder: Path | None) -> Iterator[None]:
    """Leaves the traceback of an unforeseen error in `folder` and raises Crash in its place.

    None is a fresh file in the folder for temporary files.
    """
    try:
        yield
    except Exception as error:
        of_typer = type(error).__module__.startswith(("click", "typer"))
        # a reader that has gone away (`| head`) is no defect either; typer ends on it quietly
        if of_typer or isinstance(error, BrokenPipeError) or exit_for(error) is not None:
            raise
        path = _fresh_file() if folder is None else folder / "crash.txt"
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise Crash(f"a defect of cuagent: {what}; the traceback is in {path}") from error


def _fresh_file() -> Path:
    import tempfile

    handle, name = tempfile.mkstemp(prefix="cuagent-crash-", suffix=".txt")
    os.close(handle)
    return Path(name)
