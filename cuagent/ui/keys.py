"""Switch off the echo of typed keys while no prompt reads input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_keys() -> Iterator[None]:
    """Switch off the echo of typed text within the block; the next reader of stdin still receives
    it."""
    if not _is_ours():
        yield
        return
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _is_ours() -> bool:
    """Return True if stdin is a terminal and this process is in its foreground.

    A background process would be stopped if it changed the terminal.
    """
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # closed, not there, or not a Unix
        return False
