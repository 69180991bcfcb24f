"""Notifications: the terminal's signal, and the user's program."""

from __future__ import annotations

import io
import os
import pty
import time
from pathlib import Path

import pytest

from cuagent.ui.notify import notify, signal_for


class OnTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM_PROGRAM": "WezTerm"}, "\x1b]9;done\x07"),
        ({"TERM": "xterm-kitty"}, "\x1b]9;done\x07"),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "/tmp/x"}, "\x07"),
        ({"TERM": "xterm-256color"}, "\x07"),
    ],
)
def test_words_go_where_the_terminal_shows_them_else_a_bell(
    environ: dict[str, str], expected: str
) -> None:
    assert signal_for("done", "auto", environ) == expected
    assert signal_for("done", "bell", environ) == "\x07"


def test_no_control_sequence_of_a_tasks_name_is_passed_on() -> None:
    told = signal_for("a\x1b]0;title\x07b\x9c\nc", "auto", {"TERM": "xterm-kitty"})
    assert told == "\x1b]9;ab c\x07"


def test_a_pipe_and_who_wants_none_get_nothing() -> None:
    pipe, terminal = io.StringIO(), OnTerminal()
    assert notify("done", pipe) == ""
    assert notify("done", terminal, "off") == ""
    assert pipe.getvalue() == terminal.getvalue() == ""


def test_terminal_signal_is_flushed() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        assert notify("done", stream, "bell") == ""
        assert os.read(leader, 100) == b"\x07"
    os.close(leader)


def test_a_program_of_the_users_is_called_with_the_words_and_may_fail(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "tell me"
    program.write_text(f'#!/bin/sh\nprintf "%s|%s" "$1" "$2" > "{told}.part"\n')
    with program.open("a") as file:
        file.write(f'mv "{told}.part" "{told}"\n')
    program.chmod(0o755)
    assert notify("run; rm -rf $HOME", io.StringIO(), "off", f"'{program}' --now") == ""
    deadline = time.monotonic() + 60
    while not told.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert told.read_text() == "--now|run; rm -rf $HOME", "the words are one argument, no shell's"
    wrong = notify("done", io.StringIO(), "off", str(tmp_path / "absent"))
    assert wrong.startswith(f"notify_command '{tmp_path}/absent': ")
    assert "No such file" in wrong
    assert notify("done", io.StringIO(), "off", "'unclosed").startswith("notify_command")
