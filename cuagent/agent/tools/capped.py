"""Shorten a long output to its head and tail, and store the whole output in a file.

A single huge output must neither fill the conversation nor be lost; the model can read the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from cuagent.agent.run import Run
from cuagent.agent.tools.files import opened_work
from cuagent.agent.tools.tool import ToolError
from cuagent.sandbox.beneath import create, make_folders

LONGEST = 12_000
"""Largest number of characters of an output that the model sees: a third from its head, then its
tail.
"""
LARGEST_KEPT = 64 << 20
"""Largest size in bytes of the file of one output; the rest of the output is dropped."""
OUTPUTS = ".outputs"
"""Name of the folder of output files, in the work folder."""
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def tidy(raw: bytes) -> str:
    """Decode terminal bytes to plain text, without colours, overwritten progress lines and NUL."""
    text = (
        ANSI.sub("", raw.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\0", "\ufffd")
    )
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text


def output_file(run: Run, name: str) -> tuple[str, BinaryIO]:
    """Create a file for a whole output; return its name and the file, open to read and write.

    A command may create links at this path at any time. So the file is opened once, beneath the
    work folder, and never by its name again. Raises ToolError.
    """
    run.outputs += 1
    file = f"{name}-{run.outputs}.txt"
    try:
        with opened_work(run) as work, _opened_outputs(work) as folder:
            with suppress(FileNotFoundError):
                os.unlink(file, dir_fd=folder)
            return file, os.fdopen(create(folder, file), "w+b")
    except OSError as error:
        raise ToolError(f"{OUTPUTS}/{file} cannot be created: {error.strerror}") from error


def discard_output(run: Run, file: str) -> None:
    """Delete an output file whose whole text the model has seen."""
    with opened_work(run) as work, suppress(OSError), _opened_outputs(work) as folder:
        os.unlink(file, dir_fd=folder)


@contextmanager
def _opened_outputs(work: int) -> Iterator[int]:
    """Yield a descriptor of the folder of output files; replace a file or link at its path.

    `work` is the descriptor of the work folder.
    """
    try:
        folder = make_folders(work, OUTPUTS)
    except OSError:
        os.unlink(OUTPUTS, dir_fd=work)
        folder = make_folders(work, OUTPUTS)
    try:
        yield folder
    finally:
        os.close(folder)


def head_and_tail(head: str, tail: str, left_out: int, size: int, file: str) -> str:
    """Join the head and tail of an output with a line on the `left_out` characters between them.

    The line names the file with the whole output, and its `size` in bytes.
    """
    stored = (
        "the whole output is" if size <= LARGEST_KEPT else f"the first {LARGEST_KEPT >> 20} MiB are"
    )
    return f"{head}\n... [{left_out:,} characters omitted; {stored} in {file}] ...\n{tail}"


@dataclass
class Spool:
    """Output of a running command: head and tail in memory, up to `LARGEST_KEPT` bytes in a
    file.
    """

    file: BinaryIO
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    @property
    def is_long(self) -> bool:
        """Return True if the model will see only the head and tail of the output."""
        return self.size > LONGEST

    def append(self, piece: bytes) -> None:
        if self.size < LARGEST_KEPT:
            self.file.write(piece[: LARGEST_KEPT - self.size])
        self.size += len(piece)
        room = max(0, LONGEST - len(self.head))
        self.head += piece[:room]
        self.tail += piece[room:]
        del self.tail[: -2 * LONGEST // 3]

    def text(self, file: str) -> str:
        """Return the output for the model; `file` is the path that a shortened output refers to."""
        if not self.tail:
            return tidy(bytes(self.head))
        if self.size <= LONGEST + len(self.tail) and len(self.tail) < 2 * LONGEST // 3:
            head = bytes(self.head)
        else:
            head = bytes(self.head[: LONGEST // 3])
        left_out = self.size - len(head) - len(self.tail)
        if left_out == 0:
            return tidy(head + bytes(self.tail))
        return head_and_tail(tidy(head), tidy(bytes(self.tail)), left_out, self.size, file)
