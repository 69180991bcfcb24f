"""Short excerpts of the agent's files."""

from __future__ import annotations

import io

from cuagent.events import ToolFinished, ToolStarted
from cuagent.ui.code import replaced
from cuagent.ui.terminal import Terminal

DIFF = "@@ -1,3 +1,3 @@\n one\n-two\n+zwei\n three"
ARGUMENTS = '{"path": "a.py", "text": "one\\nzwei\\nthree\\n"}'


def test_a_file_written_anew_is_shown_as_what_changed() -> None:
    stream = io.StringIO()
    with Terminal(stream) as show:
        for number, data in enumerate(({"diff": DIFF}, {})):
            show(ToolStarted(f"c{number}", "write", "a.py", ARGUMENTS))
            show(ToolFinished(f"c{number}", "write", "replaced a.py", False, 0.1, data))
    anew, fresh = stream.getvalue().split("write  a.py")[1:]
    assert "replaced: 1 line out, 1 line in" in anew
    assert "| -two" in anew
    assert "| +zwei" in anew
    assert "| one" in fresh
    assert "+zwei" not in fresh


def test_a_long_change_says_how_much_is_left_out() -> None:
    diff = "@@ -1 +1 @@\n" + "\n".join(f"+{n}" for n in range(40))
    lines = [line.plain for line in replaced(diff, 60, most=10)]
    assert lines[0].endswith("replaced: 0 lines out, 40 lines in")
    assert lines[-1].endswith("32 more lines")
    assert len(lines) == 11
