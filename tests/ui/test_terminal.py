"""The transcript: in a pipe plain and complete, on a terminal append-only with one live line."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from samples import LADDER, ON_TOP, a_run

from cuagent.events import (
    Phase,
    RunEnded,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    UserSaid,
)
from cuagent.ui.flow import Flow
from cuagent.ui.jsonl import JsonLines
from cuagent.ui.region import Region
from cuagent.ui.status import Status
from cuagent.ui.terminal import Terminal

HERE = Path(__file__).parent
ANSI = re.compile(r"\x1b\[[0-9;]*[a-zA-Z]")
SHOW = """
import sys, time
from rich.console import Console
from samples import a_run
from cuagent.ui.terminal import Terminal
with Terminal(sys.stdout) as show:
    for event in a_run():
        show(event)
        time.sleep(float(sys.argv[1]))
"""


def in_a_pipe(width: int, encoding: str = "utf-8") -> str:
    env = os.environ | {"COLUMNS": str(width), "PYTHONIOENCODING": encoding}
    env.pop("FORCE_COLOR", None)
    done = subprocess.run(
        [sys.executable, "-c", SHOW, "0"], cwd=HERE, env=env, capture_output=True, check=True
    )
    return done.stdout.decode(encoding)


def on_a_terminal(width: int, pause: float, **env: str) -> str:
    """Return the text that a program writes to a terminal of `width` columns.

    `pause`: seconds after each event.
    """
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", SHOW, str(pause)],
        cwd=HERE,
        env=inherited | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | env,
        stdout=follower,
        stderr=follower,
    ):
        os.close(follower)
        chunks = []
        while chunk := _read(leader):
            chunks.append(chunk)
    os.close(leader)
    return b"".join(chunks).decode()


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux: the other end is closed
        return b""


def screen(written: str, width: int, moves: bool = False) -> list[str]:
    """Return the rows that a terminal shows after `written`, without colours.

    It knows only the output that the view may write: text, line ends, carriage return, erase to
    the line's end; with `moves` also cursor up, and erase all below.
    """
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;]*[a-zA-Z]|\r\n|\r|\n|.", written):
        if token == "\r":
            column = 0
        elif token in ("\n", "\r\n"):
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif token == "\x1b[K":
            rows[row] = rows[row][:column]
        elif token == "\x1b[J" and moves:
            rows = [*rows[:row], rows[row][:column]]
        elif token.startswith("\x1b[") and token.endswith("A") and moves:
            row -= int(token[2:-1])
        elif token.startswith("\x1b["):
            assert token.endswith("m"), f"{token!r} moves or erases"
        else:
            if column == width:
                row, column = row + 1, 0
                rows += [""] * (row == len(rows))
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + 1 :]
            column += 1
    return rows


def test_a_pipe_gets_plain_lines(assert_looks_as_before: Callable[[str, str], None]) -> None:
    for width in (40, 80, 120):
        shown = in_a_pipe(width)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
        assert_looks_as_before(f"run_{width}", re.sub(r"\d+:\d\d", "0:00", shown))


def test_a_pipe_that_cannot_take_the_signs_gets_ascii() -> None:
    shown = in_a_pipe(80, "ascii")
    assert "ok best: attempt 2" in shown


@pytest.fixture(scope="module")
def timed() -> tuple[str, float]:
    """A run slow enough for the live line to tick, on a terminal of 60 columns, and its seconds."""
    begun = time.monotonic()
    return on_a_terminal(60, 0.06), time.monotonic() - begun


@pytest.fixture(scope="module")
def slowly(timed: tuple[str, float]) -> str:
    return timed[0]


def test_a_terminal_is_only_appended_to(slowly: str) -> None:
    rows = [row.rstrip() for row in screen(slowly, 60)]  # fails on any movement but `\r`
    assert rows[-1] == ""
    assert not any(re.search(r"^\S step \d", row) for row in rows), "a live line was left behind"
    assert "  over torch.compile           1.79x [1.74, 1.84] faster" in rows


def test_the_live_line_is_there_and_says_where_the_run_stands(slowly: str) -> None:
    states = re.findall(r"step 2 · \d:\d\d · best 1\.25x · 44\.3k tokens", slowly)
    assert states


def test_prose_of_a_tool_is_wrapped_and_its_tables_are_cut() -> None:
    table = "aten::convolution   2   5.9 ms   57%  340 MB/s 1%, 8.97 GFLOP/s 3%"
    note = "- the operators add up to 10.3 ms, 3.3x the call: their shares are rough"
    error = "Error: no tool 'search'; the tools are bash, read, write and a dozen of others"
    lines = shown_at(50, ("profile", f"{note}\n{table}", False), ("search", error, True))
    said = " ".join(" ".join(line.split()) for line in lines)
    assert note in said
    assert error in said
    assert table not in said
    assert all(len(line) <= 50 for line in lines)


def shown_at(width: int, *results: tuple[str, str, bool]) -> list[str]:
    """Return the lines that a terminal of `width` columns shows of the results of tools."""
    stream = io.StringIO()
    with Terminal(stream, footer=True) as show:
        show.console.width = width
        for number, (name, output, is_error) in enumerate(results):
            show(ToolStarted(str(number), name, ""))
            show(ToolFinished(str(number), name, output, is_error, 0.0))
    return ANSI.sub("", stream.getvalue()).split("\n")


def test_a_replayed_question_does_not_repeat_the_result() -> None:
    stream = io.StringIO()
    with Terminal(stream, recorded=True) as show:
        for summary in ("one kernel", "one kernel", "a better kernel"):
            show(RunEnded("submitted", ON_TOP, summary, LADDER))
    assert stream.getvalue().count("stopped") == 2


def test_a_queued_message_is_announced_for_the_users_turn() -> None:
    with Terminal(io.StringIO(), footer=True) as show:
        show.pause(queued=True)
        assert "your turn: Enter sends the queued message" in show.footer_lines(80)[-1]


def test_the_clock_stands_while_the_user_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("cuagent.ui.terminal.time", SimpleNamespace(monotonic=lambda: now[0]))
    with Terminal(io.StringIO(), footer=True) as show:
        show(StepStarted(1))
        show(ToolStarted("1", "bash", "ls"))
        with show.asking():
            assert show.footer_lines(80)[-1] == "step 1 - 0:00 - waiting for your answer"
            now[0] += 5.0
            assert "0:00" in show.footer_lines(80)[-1]
        assert show.footer_lines(80)[-1].endswith("step 1 - 0:00 - bash")
        show.pause()
        with show.asking():
            pass
        now[0] += 5.0
        assert "0:00" in show.footer_lines(80)[-1], "the pause goes on"


def test_interrupted_work_does_not_replace_the_users_turn() -> None:
    """An interrupted judge works on for some seconds and reports its phases."""
    with Terminal(io.StringIO(), footer=True) as show:
        show(StepStarted(1))
        show.pause()
        judge = threading.Thread(target=lambda: show(Phase("timing 3 models", passing=True)))
        judge.start()
        judge.join()
        assert "your turn" in show.footer_lines(80)[-1]
        show(Phase("summarizing the conversation"))
        assert "summarizing" in show.footer_lines(80)[-1]
        show(ToolStarted("1", "verify", ""))
        show(StepStarted(2))
        judge = threading.Thread(target=lambda: show(Phase("timing 4 models", passing=True)))
        judge.start()
        judge.join()
        assert "thinking" in show.footer_lines(80)[-1], "not yet a phase of this step"


def test_interrupted_work_prints_nothing_after_the_summary() -> None:
    stream = io.StringIO()
    with Terminal(stream) as show:
        show(RunEnded("interrupted", None, "no kernel tried"))
        judge = threading.Thread(target=lambda: show(Phase("timing: opening compile")))
        judge.start()
        judge.join()
        assert "opening compile" not in stream.getvalue()
        show(Phase("judging the recorded shapes"))
        show(StepStarted(1))
        show(ToolStarted("1", "verify", ""))
        show(ToolFinished("1", "verify", "", False, 0.1, {}))
    assert "judging the recorded shapes" in stream.getvalue()


def test_long_words_of_the_user_are_not_repeated_whole() -> None:
    stream = io.StringIO()
    with Terminal(stream, footer=True) as show:
        show(UserSaid("\n".join(map(str, range(100)))))
    assert len(stream.getvalue().split()) < 30
    assert "92 more lines" in stream.getvalue()


def test_pause_shows_the_summary_only_if_it_changed() -> None:
    stream = io.StringIO()
    with Terminal(stream, footer=True) as show:
        for stop, summary in (
            ("answered", "no accepted kernel"),
            ("answered", "no accepted kernel"),
            ("interrupted", "no accepted kernel"),
            ("answered", "attempt 1"),
        ):
            show(RunEnded(stop, None, summary))
        show.pause(finished=True)
        assert "type what to try next" in show.footer_lines(80)[-1]
    assert stream.getvalue().split("\n") == [
        "",
        "answered: no accepted kernel",
        "",
        "interrupted",
        "",
        "answered: attempt 1",
        "",
    ]


def test_the_live_line_is_not_redrawn_without_need(timed: tuple[str, float]) -> None:
    written, seconds = timed
    events = sum(1 for _ in a_run())
    assert written.count("\r\x1b[K") <= events
    assert len(re.findall(r"step \d · \d:\d\d", written)) <= events + 5 * seconds + 5


@pytest.fixture(scope="module")
def widely() -> str:
    """The same on a terminal of 120 columns."""
    return on_a_terminal(120, 0.06)


def test_a_wide_terminal_shows_both_sides_while_it_works(widely: str) -> None:
    live = re.sub(r"\x1b\[[0-9;]*m", "", widely)
    working = live[: live.index("best: attempt 2")]
    assert re.search(r"step 2 · \d:\d\d · best 1\.25x +│ +time +eager", working)
    assert re.search(r"verify +│", working)
    assert "│ ▸ CUDA graphs    15.0 us" in working
    assert "│ ✓ attempt 2      12.0 us" in working
    assert re.search(r"│ 1\.25x │", working), "the chart"


def test_both_sides_leave_nothing_behind_in_the_transcript(widely: str) -> None:
    rows = [row.rstrip() for row in screen(widely, 120, moves=True)]
    assert not any(row.startswith("─" * 40) for row in rows)
    assert not any(re.search(r"^\S step \d", row) for row in rows)
    said = "I fuse scale, bias and softmax in one kernel, one row a block."
    assert rows.count(said) == 1
    assert sum("over best rung" in row for row in rows) == 2, "with the attempt and at the end"
    assert rows[-1] == ""


def test_repeated_phase_is_printed_once() -> None:
    stream = io.StringIO()
    with Terminal(stream) as show:
        for _ in range(3):
            show(Phase("timing: opening eager"))
    assert stream.getvalue().count("timing: opening eager") == 1


def test_a_passing_phase_leaves_no_line() -> None:
    stream = io.StringIO()
    with Terminal(stream) as show:
        show(Phase("timing 2 models by turns", passing=True))
        assert show.status.activity == "timing 2 models by turns"
    assert stream.getvalue() == ""


def test_no_color_is_honoured() -> None:
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", on_a_terminal(60, 0, NO_COLOR="1"))
    assert "\x1b[31m" in on_a_terminal(60, 0)


def test_a_window_that_becomes_narrower_keeps_no_piece_of_the_live_line() -> None:
    region = Region(Console(file=io.StringIO(), width=20))  # one line has become three
    region.reflows, region.drawn = True, [59]
    assert region.erase() == "\x1b[2A\r\x1b[J\x1b[K"
    region.reflows, region.drawn = False, [59]
    assert region.erase() == "\r\x1b[K"


def test_what_is_typed_meanwhile_does_not_show() -> None:
    program = (
        "import sys, termios\n"
        "from cuagent.ui.keys import silent_keys\n"
        "echo = lambda: bool(termios.tcgetattr(0)[3] & termios.ECHO)\n"
        "before = echo()\n"
        "with silent_keys():\n    during = echo()\n"
        "print(before, during, echo())\n"
    )
    shown = b""

    def read(terminal: int) -> bytes:
        nonlocal shown
        piece = os.read(terminal, 1024)
        shown += piece
        return piece

    pty.spawn([sys.executable, "-c", program], read, lambda terminal: b"")
    assert b"True False True" in shown


def test_a_dumb_terminal_has_no_live_line() -> None:
    assert "\x1b[K" not in on_a_terminal(60, 0, TERM="dumb")


def test_streamed_text_wraps_at_blanks_for_any_chunking() -> None:
    text = "\n\nOne kernel for all rows, each in registers.\n\n\n\n- fused\n    indented\n"
    wanted = "One kernel for\nall rows, each\nin registers.\n\n- fused\n    indented\n"
    for size in (1, 2, 3, 7, 100):
        flow = Flow(16)
        pieces = (text[i : i + size] for i in range(0, len(text), size))
        assert "".join(map(flow.feed, pieces)) + flow.end() == wanted


def test_a_control_sequence_cut_in_two_by_streaming_is_not_obeyed() -> None:
    stream = io.StringIO()
    show = Terminal(stream)
    for piece in ("before \x1b", "[2J\x1b", "]0;x", "\x07 after"):
        show(TextDelta(piece))
    with show:
        pass
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", stream.getvalue())


@pytest.mark.parametrize("width", [12, 20, 40, 80, 120])
def test_the_live_line_fits(width: int) -> None:
    status = Status(12, 1.43, 120_000, 0.5, "bash: nvcc -O3 -arch=sm_90a kernels/softmax.cu")
    line = status.line(3723, width, tick=5)
    assert len(line) <= width
    assert "step 12" in line


def test_json_lines_are_one_object_each() -> None:
    stream = io.StringIO()
    view = JsonLines(stream)
    for event in a_run():
        view(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["type"] for line in lines[:3]] == ["phase", "run_started", "ladder_measured"]
    assert lines[-1]["best"]["score"]["reward"] == 3
    assert all(isinstance(line["time"], float) for line in lines)


def test_json_lines_mask_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-secret-value")
    stream = io.StringIO()
    JsonLines(stream)(TextDelta("the key is planted-secret-value, keep it"))
    assert "planted" not in stream.getvalue()


def test_the_users_turn_is_shown_whole_in_a_narrow_line() -> None:
    turn = "your turn: Enter continues, /help"
    status = Status(6, 0.67, 65_900, 0.5, turn, sure=False)
    assert turn in status.line(371, 70)
    assert "65.9k" in status.line(371, 120)
    assert turn not in status.line(371, 70, tick=1), "figures of a working run do not jump"
