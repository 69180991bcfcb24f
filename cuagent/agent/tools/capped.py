"""Long outputs: the head and the tail for the model, the whole in a file that it can read.

A single huge output must not fill the conversation; nor may it be lost.
"""

from __future__ import annotations

import re
from pathlib import Path

from cuagent.agent.run import Run

LONGEST = 12_000
"""Characters of an output that go to the model; a third from its head, the rest from its tail."""
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


def output_file(run: Run, name: str) -> Path:
    """The name of a fresh file for a whole output; open it with mode "x".

    A command may have left links here, and what we write must not follow them.
    """
    run.outputs += 1
    folder = run.work / OUTPUTS
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{run.outputs}.txt"
    file.unlink(missing_ok=True)
    return file


def head_and_tail(head: str, tail: str, left_out: int, whole: str) -> str:
    """Both ends, and between them how many characters are missing and where they are."""
    return f"{head}\n... [{left_out:,} characters left out; the whole is in {whole}] ...\n{tail}"
