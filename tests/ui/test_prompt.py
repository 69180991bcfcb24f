"""The line at the footer: a narrower window, what Tab completes, and whose a line is."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session, run_in_terminal
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

import cuagent.ui.prompt
from cuagent.ui.footer import Footer
from cuagent.ui.prompt import Prompt, Work


def test_a_narrower_window_keeps_no_piece_of_the_foot() -> None:
    written, columns = io.StringIO(), [80]
    output = Vt100_Output(written, lambda: Size(40, columns[0]), term="xterm")
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=output),
        Prompt({}, status=lambda width: ["x" * width]),
    ):
        _until(lambda: "x" * 79 in written.getvalue())
        columns[0] = 30
        # the terminal has broken the line of 79 columns in three, and the cursor is below them
        _until(lambda: "\x1b[3A\r\x1b[J" in written.getvalue())
        _until(lambda: "x" * 29 in _after(written))
    assert "x" * 30 not in _after(written)


def test_text_that_is_printed_before_the_redrawing_leaves_no_piece_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuagent.ui.prompt, "REFRESH", 600.0)
    written, columns = io.StringIO(), [80]
    output = Vt100_Output(written, lambda: Size(40, columns[0]), term="xterm")
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=output),
        Prompt({}, status=lambda width: ["x" * width]) as prompt,
    ):
        _until(lambda: "x" * 79 in written.getvalue())
        columns[0] = 30
        app = prompt._session.app
        assert app.loop is not None
        show = partial(run_in_terminal, lambda: written.write("an answer"))
        app.loop.call_soon_threadsafe(show, context=app.context)
        _until(lambda: "an answer" in written.getvalue())
    before, _, after = written.getvalue().partition("an answer")
    assert "\x1b[3A\r\x1b[J" in before
    assert "x" * 30 not in after


def test_a_window_that_becomes_narrower_while_the_foot_is_drawn() -> None:
    columns, up = [80], list[int]()
    line = {x: SimpleNamespace(char="x") for x in range(79)}
    screen = SimpleNamespace(
        data_buffer={0: line}, get_cursor_position=lambda _: SimpleNamespace(x=2, y=1)
    )
    output = SimpleNamespace(
        get_size=lambda: Size(40, columns[0]),
        cursor_up=up.append,
        write_raw=lambda _: None,
        erase_down=lambda: None,
    )
    app: Any = SimpleNamespace(
        output=output,
        renderer=SimpleNamespace(last_rendered_screen=screen, reset=lambda: None),
        layout=SimpleNamespace(current_window=None),
    )
    footer = Footer()
    footer.follow(app)
    columns[0] = 30
    footer.remember(app)
    footer.follow(app)
    assert up == [3], "one line of 79 columns has become three"
    footer.remember(app)
    footer.follow(app)
    assert up == [3]


def test_tab_completes_commands_and_the_names_of_files() -> None:
    said: list[str | None] = []
    output = Vt100_Output(io.StringIO(), lambda: Size(40, 80), term="xterm")
    names = ("kernels/scale.cu", "kernels/softmax.cu", "model_new.py")
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=output),
        Prompt({"best": "", "undo": ""}, names=lambda: names) as prompt,
    ):
        for typed in ("/un\t\r", "read mod\t\r", "ker\tca\t and \t\r"):
            keys.send_text(typed)
            said.append(prompt.next())
    assert said == ["/undo", "read model_new.py", "kernels/scale.cu and"]


def test_once_the_work_is_done_a_line_is_the_next_one_and_an_empty_one_too() -> None:
    taken: list[str] = []
    output = Vt100_Output(io.StringIO(), lambda: Size(40, 80), term="xterm")
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=output),
        Prompt({}) as prompt,
        prompt.working(Work(taken.append, lambda: None)),
    ):
        keys.send_text("to the agent\r")
        _until(lambda: taken == ["to the agent"])
        prompt.stop_working()
        keys.send_text("\r")
        keys.send_text("to the session\r")
        assert [prompt.next(), prompt.next()] == ["", "to the session"]
    assert taken == ["to the agent"]


def test_a_question_keeps_the_status_below_it() -> None:
    written, answers = io.StringIO(), []
    output = Vt100_Output(written, lambda: Size(40, 80), term="xterm")
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=output),
        Prompt({}, status=lambda width: ["what streams", "step 3, 1:07"]) as prompt,
    ):
        _until(lambda: "step 3, 1:07" in written.getvalue())
        written.truncate(0)
        asking = threading.Thread(
            target=lambda: answers.append(prompt.ask("may it?", threading.Event()))
        )
        asking.start()
        _until(lambda: "may it?" in written.getvalue())
        lines = prompt._message()[0][1]
        keys.send_text("y\r")
        asking.join(60)
    assert lines == "may it?\nstep 3, 1:07\n"
    assert answers == ["y"]


def _after(written: io.StringIO) -> str:
    return written.getvalue().rpartition("\x1b[3A\r\x1b[J")[2]


def _until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
