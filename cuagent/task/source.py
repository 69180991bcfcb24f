"""Read and parse source files that may come from anyone: no read blocks, no depth overflows."""

from __future__ import annotations

import ast
import os
import stat
import threading
from pathlib import Path

LARGEST_FILE = 4 << 20
"""Size in bytes of the largest file that is read; source text is smaller."""
_PARSING = threading.Lock()
"""Lock held while a text is parsed: two threads that parse at once can raise SystemError in CPython
3.11 (https://github.com/python/cpython/issues/106905)."""


def read_source(path: Path) -> bytes:
    """Return the content of a file.

    Raises OSError, also for a device, a pipe, or a file of more than LARGEST_FILE bytes.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"larger than {LARGEST_FILE >> 20} MiB; move data to another file")
    return content


def parse_python(text: str, path: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a text that may come from anyone. Raises SyntaxError only."""
    try:
        with _PARSING:
            return ast.parse(text, filename=path)
    except (RecursionError, MemoryError) as error:  # the parser's own limits of depth
        raise SyntaxError("nested too deeply") from error
    except ValueError as error:
        raise SyntaxError(str(error)) from error
