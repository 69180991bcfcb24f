"""Run a command on a pseudo-terminal, type into it, and read its screen."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path
from types import TracebackType

from commands import clean_environment

ESCAPES = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x09\x0b-\x1f]")


class Typist:
    """The process `python -m cuagent ARGUMENTS...`, run in `folder` on a pseudo-terminal of 80
    columns."""

    def __init__(self, python: list[str], folder: Path, *arguments: str) -> None:
        self._leader, follower = pty.openpty()
        ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        self._process = subprocess.Popen(
            [*python, "-m", "cuagent", *arguments],
            cwd=folder,
            env=clean_environment(folder / "home") | {"TERM": "xterm-256color"},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        self._raw = b""
        self._from = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Typist:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(60)
        os.close(self._leader)

    @property
    def shown(self) -> str:
        """All text written to the terminal so far, without control sequences."""
        return ESCAPES.sub("", self._raw.decode(errors="replace"))

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def see(self, text: str, seconds: float = 200) -> None:
        """Wait until `text` appears after the text found last. The limit is long, because a run
        first times its ladder.

        The footer rewrites only its changed parts, so wait for text that is printed above it.
        """
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text, self._from)) < 0:
            assert time.monotonic() < deadline, f"{text!r} not in:\n{self.shown[self._from :]}"
            time.sleep(0.05)
        self._from = at + len(text)

    def leave(self, seconds: float = 200) -> int:
        """Wait for the command to end and return its exit code."""
        code = self._process.wait(seconds)
        self._reader.join(60)
        return code

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._leader, 65536)
            except OSError:  # Linux: the other end is closed
                return
            if not piece:
                return
            self._raw += piece
            if b"\x1b[6n" in piece:  # where is the cursor? a terminal would say
                os.write(self._leader, b"\x1b[1;1R")
