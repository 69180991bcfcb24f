"""`!command` in a session: a command of the user's, run by the user's own shell.

It runs in the folder where cuagent was started, with the user's rights and environment and outside
of the sandbox. Its output is shown as it comes. The model is told of it only with `!!command`: the
output may hold what is not meant for a provider. Not covered: programs that need input or draw on
the terminal; the keyboard belongs to the session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

SIGN = "!"
LONGEST_TOLD = 12_000
"""Characters of an output that the model is told; a third from its head, the rest from its tail."""
LONGEST_SHOWN = 1_000
"""Lines of an output that are shown."""

Say = Callable[[str, str], None]
"""Shows text in a style."""


@dataclass
class UserCommands:
    """Those of a session that run now; `end` kills them."""

    say: Say
    tell_model: Callable[[str], None]
    """Tells the model, with its next step."""
    running: set[subprocess.Popen[str]] = field(default_factory=set)

    def run(self, line: str) -> None:
        """Run what follows the sign, to its end."""
        told = line.startswith(2 * SIGN)
        command = line.lstrip(SIGN).strip()
        if not command:
            self.say(HELP, "dim")
            return
        self.say(f"\n{SIGN} {command}", "bold")
        try:
            process = start(command)
        except OSError as error:
            self.say(f"{_shell()}: {error.strerror}; set SHELL", "yellow")
            return
        self.running.add(process)
        try:
            output = self._show(process)
            code = process.wait()
        finally:
            self.running.discard(process)
        ending = _ending(code)
        if ending:
            self.say(ending, "yellow")
        if told:
            self.tell_model(message(command, output, ending))
            self.say("the model gets the output with its next step", "dim")

    def begin(self, line: str) -> None:
        """The same beside the agent's work."""
        threading.Thread(target=self.run, args=(line,), daemon=True, name="own-command").start()

    def end(self) -> None:
        """Kill those that run, and what they have started."""
        for process in tuple(self.running):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _show(self, process: subprocess.Popen[str]) -> str:
        """Show each line as it comes; returns the output, without its middle where it is long."""
        assert process.stdout is not None
        head, tail = "", ""
        for number, line in enumerate(process.stdout):
            if number < LONGEST_SHOWN:
                self.say(f"  {line.rstrip()}", "")
            elif number == LONGEST_SHOWN:
                self.say("  ... more lines follow that are not shown", "dim")
            if len(head) < LONGEST_TOLD // 3:
                head += line[: LONGEST_TOLD // 3]
            else:
                tail = (tail + line)[-2 * LONGEST_TOLD // 3 :]
        return head + tail


HELP = (
    "type a command after it: !COMMAND for yourself, !!COMMAND to send its output to the model too"
)


def start(command: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, without input."""
    return subprocess.Popen(
        [_shell(), "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )


def message(command: str, output: str, ending: str) -> str:
    """What the model is told of a command of the user's."""
    body = output.rstrip() or "(no output)"
    return f"I ran `{command}` myself. Its output:\n\n{body}" + (f"\n[{ending}]" if ending else "")


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


def _shell() -> str:
    return os.environ.get("SHELL") or "/bin/sh"
