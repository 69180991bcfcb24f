"""Long outputs: the head and the tail for the model, the whole in a file that it can read.

A single huge output must not fill the conversation; nor may it be lost.
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
"""Characters of an output that go to the model; a third from its head, the rest from its tail."""
LARGEST_KEPT = 64 << 20
"""Bytes of one output that are kept in its file."""
OUTPUTS = ".outputs"
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def tidy(raw: bytes) -> str:
    """Bytes of a terminal as plain text: no colours, no overwritten progress lines, no NUL."""
    text = (
        ANSI.sub("", raw.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\0", "\ufffd")
    )
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text


def output_file(run: Run, name: str) -> tuple[str, BinaryIO]:
    """The name of a fresh file for a whole output, and the file, open to write and to read.

    Commands may put links here, before and while it is written. So it is opened once, beneath the
    work folder, and never by its name again.
    """
    run.outputs += 1
    file = f"{name}-{run.outputs}.txt"
    try:
        with opened_work(run) as work, _opened_outputs(work) as folder:
            with suppress(FileNotFoundError):
                os.unlink(file, dir_fd=folder)
            return file, os.fdopen(create(folder, file), "w+b")
    except OSError as error:
        raise ToolError(f"{OUTPUTS}/{file} cannot be made: {error.strerror}") from error


def discard_output(run: Run, file: str) -> None:
    """Remove an output that the model was shown whole."""
    with opened_work(run) as work, suppress(OSError), _opened_outputs(work) as folder:
        os.unlink(file, dir_fd=folder)


@contextmanager
def _opened_outputs(work: int) -> Iterator[int]:
    """The folder of outputs; what lies at its place and is no folder is removed."""
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
    """Both ends, and between them how many characters are missing and where they are."""
    kept = "the whole is" if size <= LARGEST_KEPT else f"the first {LARGEST_KEPT >> 20} MiB are"
    return f"{head}\n... [{left_out:,} characters left out; {kept} in {file}] ...\n{tail}"


@dataclass
class Spool:
    """An output as it comes: its head and tail in memory, the whole in a file."""

    file: BinaryIO
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    @property
    def is_long(self) -> bool:
        """Whether the file holds more than the model is shown."""
        return self.size > LONGEST

    def take(self, piece: bytes) -> None:
        if self.size < LARGEST_KEPT:
            self.file.write(piece[: LARGEST_KEPT - self.size])
        self.size += len(piece)
        room = max(0, LONGEST - len(self.head))
        self.head += piece[:room]
        self.tail += piece[room:]
        del self.tail[: -2 * LONGEST // 3]

    def text(self, file: str) -> str:
        """What the model sees; `file` is where the rest can be read."""
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
