"""Notify the user that a run has ended or waits for an answer.

It uses the terminal's bell or notification, and optionally a program of the user. A failure here
never fails the run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import TextIO

from cuagent.ui.text import one_line

OSC9_TERMINALS = ("iTerm.app", "WezTerm", "ghostty")
"""Terminals (values of TERM_PROGRAM) that show the text of an OSC 9 sequence as a notification."""


def notify(text: str, stream: TextIO, how: str = "auto", command: str = "") -> str:
    """Notify the user on a terminal `stream`, and start the user's program `command`.

    `how` is `auto`, `bell` or `off`. Returns one line about an error of the program, or "".
    """
    if how != "off" and stream.isatty():
        stream.write(signal_for(text, how, os.environ))
        stream.flush()
    if not command:
        return ""
    try:
        subprocess.Popen(
            [*shlex.split(command), text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"notify_command {command!r}: {error}"
    return ""


def signal_for(text: str, how: str, environ: Mapping[str, str]) -> str:
    """Return the control sequence for a notification.

    It is OSC 9 with the text if the terminal supports that (not in tmux), else the bell.
    """
    supported = (
        environ.get("TERM_PROGRAM") in OSC9_TERMINALS or environ.get("TERM") == "xterm-kitty"
    )
    if how == "auto" and supported and "TMUX" not in environ:
        return f"\x1b]9;{one_line(text)}\x07"
    return "\x07"
