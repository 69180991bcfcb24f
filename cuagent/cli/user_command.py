"""Run `!command` of a session: a command of the user, in the user's shell.

It runs in the folder where cuagent was started, with the user's rights and environment and outside
of the sandbox. Its output is shown as it arrives. The model gets the output only with `!!command`,
because it may contain text that is not meant for a provider.

Not covered: programs that need input or draw on the terminal; the session reads the keyboard.
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
"""Largest number of characters of an output that the model gets: a third from its beginning, the
rest from its end."""
LONGEST_SHOWN = 1_000
"""Largest number of lines of an output that the user sees."""

Say = Callable[[str, str], None]
"""Function that shows a text to the user in a style: (text, style)."""


@dataclass
class UserCommands:
    """Runs the user's commands in a session; `end` kills those that are still running."""

    say: Say
    tell_model: Callable[[str], None]
    """Function that queues a text for the model's next step."""
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    ends: int = 0
    """Number of calls of `end`; a command that starts meanwhile is killed too."""

    def run(self, line: str) -> None:
        """Run the command after `!` or `!!` and wait for its end."""
        told = line.startswith(2 * SIGN)
        command = line.lstrip(SIGN).strip()
        if not command:
            self.say(HELP, "dim")
            return
        ends = self.ends
        self.say(f"\n{SIGN} {command}", "bold")
        try:
            process = start(command)
        except OSError as error:
            self.say(f"{_shell()}: {error.strerror}; set SHELL", "yellow")
            return
        self.running.add(process)
        if self.ends != ends:
            self.end()
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
        """Run a line like `run`, but in a separate thread, while the agent works."""
        threading.Thread(target=self.run, args=(line,), daemon=True, name="own-command").start()

    def end(self) -> None:
        """Kill the running commands and their child processes."""
        self.ends += 1
        for process in tuple(self.running):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _show(self, process: subprocess.Popen[str]) -> str:
        """Show each line of output as it arrives; return the output, without its middle if it is
        long."""
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
    """Start a command in the user's shell, in a new process group and without input."""
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
    """Return the message that tells the model about a command of the user and its output."""
    body = output.rstrip() or "(no output)"
    return f"I ran `{command}` myself. Its output:\n\n{body}" + (f"\n[{ending}]" if ending else "")


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


def _shell() -> str:
    return os.environ.get("SHELL") or "/bin/sh"
