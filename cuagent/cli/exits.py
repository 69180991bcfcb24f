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

CRASH = "crash.txt"
"""Where a run folder holds the traceback of a defect."""


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


EXPECTED = {
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
        if kind.__module__.startswith("cuagent.") and kind.__name__ in EXPECTED:
            return EXPECTED[kind.__name__]
    return None


def print_stderr(text: str) -> None:
    """One line on stderr; on a terminal broken so that commands and IDs stay whole if they can."""
    from cuagent.ui.text import one_line

    line = f"cuagent: {one_line(text)}"
    lines = [line]
    if sys.stderr.isatty():
        import shutil

        lines = _broken(line, max(shutil.get_terminal_size().columns, 20))
    print("\n".join(lines), file=sys.stderr, flush=True)


def _broken(line: str, width: int) -> list[str]:
    """The line in pieces: behind semicolons first, and at blanks where that is not enough."""
    from cuagent.ui.text import wrap

    *others, last = line.split("; ")
    pieces = [""]
    for clause in (*(f"{other};" for other in others), last):
        if pieces[-1] and len(pieces[-1]) + 1 + len(clause) > width:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {clause}".lstrip()
    return [part for piece in pieces for part in wrap(piece, width)]


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
        text = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        path = _written(text, folder)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise Crash(f"internal error of cuagent: {what}; the traceback is in {path}") from error


def _written(text: bytes, folder: Path | None) -> Path:
    """The file with the text: in the folder of the run, never through a link that lies there."""
    import tempfile

    from cuagent.record import write_file

    if folder is not None:
        try:
            write_file(folder, CRASH, text)
            return folder / CRASH
        except OSError:
            pass  # the folder is gone or cannot be written
    handle, name = tempfile.mkstemp(prefix="cuagent-crash-", suffix=".txt")
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return Path(name)
