"""The exit codes; and every error as one line on stderr.

0    normal end: accepted, or a run that ended normally, with a gain or without
1    rejected, or the run failed
2    usage: an argument, a file or a setting that cannot be used
3    infrastructure: no worker, no provider, or an internal error of cuagent
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
"""Name of the file in a run folder with the traceback of an internal error."""


class Exit(IntEnum):
    OK = 0
    NO = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130


class Refused(Exception):
    """Error: the request cannot be carried out. The message is one line: what, where, what to
    do."""


class Crash(Exception):
    """Error inside cuagent. The message is one line that names the file with the traceback."""


EXPECTED = {
    "Refused": Exit.USAGE,
    "AttemptError": Exit.USAGE,
    "BenchError": Exit.USAGE,
    "CaptureRefused": Exit.USAGE,
    "CandidateFault": Exit.NO,
    "ConfigError": Exit.USAGE,
    "EngineError": Exit.INFRASTRUCTURE,
    "EvidenceError": Exit.USAGE,
    "ExportError": Exit.USAGE,
    "RecordError": Exit.USAGE,
    "ScriptFailed": Exit.NO,
    "SynthError": Exit.USAGE,
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
"""Exit codes of the packages' expected errors, whose message is one line for the user. The keys are
class names, so that the packages need not be imported."""


def exit_for(error: BaseException) -> Exit | None:
    """Return the exit code for an expected error; None for any other error."""
    for kind in type(error).__mro__:
        if kind.__module__.startswith("cuagent.") and kind.__name__ in EXPECTED:
            return EXPECTED[kind.__name__]
    return None


def print_stderr(text: str) -> None:
    """Print one line on stderr. On a terminal it is wrapped, but commands and IDs stay whole."""
    from cuagent.ui.text import one_line

    line = f"cuagent: {one_line(text)}"
    lines = [line]
    if sys.stderr.isatty():
        import shutil

        lines = _break_line(line, max(shutil.get_terminal_size().columns, 20))
    print("\n".join(lines), file=sys.stderr, flush=True)


def _break_line(line: str, width: int) -> list[str]:
    """Break a line into pieces of at most `width` characters: after semicolons, else at blanks.

    A command of cuagent gets a separate row and is not broken.
    """
    from cuagent.cli.commands import COMMANDS
    from cuagent.ui.text import wrap

    *others, last = line.split("; ")
    pieces = [""]
    for clause in (*(f"{other};" for other in others), last):
        if pieces[-1] and len(pieces[-1]) + 1 + len(clause) > width:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {clause}".lstrip()
    rows = []
    for piece in pieces:
        before, _, command = piece.partition(": cuagent ")
        if command.partition(" ")[0] in COMMANDS and len(piece) > width:
            # The terminal breaks it, so that it can be copied whole.
            rows += [*wrap(f"{before}:", width), f"cuagent {command}"]
        else:
            rows += wrap(piece, width)
    return rows


@contextmanager
def crashes_to(folder: Path | None) -> Iterator[None]:
    """Write the traceback of an unexpected error in the block into `folder`, and raise Crash
    instead.

    If `folder` is None, the file is created in the system's folder for temporary files.
    """
    try:
        yield
    except Exception as error:  # the process boundary; foreseen errors are raised again
        of_typer = type(error).__module__.startswith(("click", "typer"))
        # a closed pipe (`| head`) is normal; typer exits quietly on it
        if of_typer or isinstance(error, BrokenPipeError) or exit_for(error) is not None:
            raise
        text = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
        path = _write_traceback(text, folder)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise Crash(f"internal error of cuagent: {what}; the traceback is in {path}") from error


def _write_traceback(text: bytes, folder: Path | None) -> Path:
    """Write a traceback to a new file in `folder`, never through a link; return the file's path."""
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
