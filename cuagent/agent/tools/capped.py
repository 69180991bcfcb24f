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
    """A fresh file for a whole output."""
    run.outputs += 1
    folder = run.work / OUTPUTS
    folder.mkdir(exist_ok=True)
    return folder / f"{name}-{run.outputs}.txt"


def head_and_tail(head: str, tail: str, left_out: int, whole: str) -> str:
    """Both ends, and between them how many characters are missing and where they are."""
    return f"{head}\n... [{left_out:,} characters left out; the whole is in {whole}] ...\n{tail}"


def capped(run: Run, text: str, name: str) -> str:
    """The text, or both ends of it."""
    if len(text) <= LONGEST:
        return text
    file = output_file(run, name)
    file.write_text(text, encoding="utf-8", errors="replace")
    head, tail = text[: LONGEST // 3], text[-2 * LONGEST // 3 :]
    whole = f"{OUTPUTS}/{file.name}"
    return head_and_tail(head, tail, len(text) - len(head) - len(tail), whole)
