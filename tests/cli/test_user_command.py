"""Commands of the user's own in a session."""

from __future__ import annotations

import subprocess

import pytest

from cuagent.cli import user_command
from cuagent.cli.user_command import UserCommands


def test_an_interrupt_while_a_command_starts_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    commands = UserCommands(lambda text, style: said.append(text), said.append)
    start = user_command.start

    def interrupted(command: str) -> subprocess.Popen[str]:
        process = start(command)
        commands.end()
        return process

    monkeypatch.setattr(user_command, "start", interrupted)
    commands.run("!sleep 60; echo never")
    assert said == ["\n! sleep 60; echo never", "killed by SIGKILL"]
    monkeypatch.setattr(user_command, "start", start)
    commands.run("!echo again")
    assert said[-1] == "  again"
