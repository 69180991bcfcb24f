"""Show long texts in a pager on a terminal; print them in a pipe."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from cuagent.ui.console import make_console

LESS = "FRX"
"""Flags of less: quit if the text fits the screen, keep colours, keep the text on exit."""


def page(lines: Iterable[Text], console: Console | None = None) -> None:
    """Show the lines on stdout: in `$PAGER` or less on a terminal, else printed."""
    shown = console or make_console(sys.stdout)
    command = shlex.split(os.environ.get("PAGER") or "less")
    if not (shown.is_terminal and sys.stdin.isatty() and command and shutil.which(command[0])):
        for line in lines:
            shown.print(line, soft_wrap=True)
        return
    environment = {"LESS": LESS, "LESSCHARSET": "utf-8"} | os.environ
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert reader.stdin is not None
    # while the pager runs, Ctrl-C is for the pager only
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError), reader.stdin as pipe:
            for line in lines:
                with shown.capture() as capture:
                    shown.print(line, soft_wrap=True)
                pipe.write(capture.get().encode("utf-8", "replace"))
        reader.wait()
    finally:
        signal.signal(signal.SIGINT, before)
