"""Short excerpts of the agent's files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from cuagent.events import StepStarted, ToolFinished, ToolStarted
from cuagent.ui.code import LOG_LINES, excerpt, replaced
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


def rows_of(path: str, source: str, lines: int = 8) -> list[str]:
    return [row.plain.removeprefix("  │ ") for row in excerpt(path, source, 80, lines=lines)]


def test_an_excerpt_of_a_long_module_begins_with_the_forward_of_the_new_class() -> None:
    old = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        pass\n"
    new = "class ModelNew(Model):\n    def __init__(self):\n        pass\n\n"
    source = old + new + "    def forward(self, x):\n        return kernel(x)\n"
    assert rows_of("model_new.py", source)[:2] == [
        "    def forward(self, x):",
        "        return kernel(x)",
    ]
    assert rows_of("model_new.py", source, lines=20)[0] == "import torch"


def test_of_a_long_header_only_the_length_is_shown() -> None:
    header = "#include <cmath>\n" + "float f(float x);\n" * 110
    assert rows_of("kernels/pointwise.h", header) == ["… 111 lines in all"]
    assert rows_of("kernels/pointwise.h", header, lines=60) == ["… 111 lines in all"]
    assert rows_of("kernels/mine.h", "float f(float x);\n" * 20)[0] == "float f(float x);"


def test_of_many_files_in_a_step_the_first_and_the_module_are_shown() -> None:
    stream = io.StringIO()
    names = [*(f"kernels/k{n}.cpp" for n in range(7)), "model_new.py"]
    with Terminal(stream) as show:
        for step in (1, 2):
            show(StepStarted(step))
            for name in names:
                arguments = json.dumps({"path": name, "text": f"text of {name} in {step}"})
                show(ToolStarted(f"{step}{name}", "write", name, arguments))
                show(ToolFinished(f"{step}{name}", "write", "written", False, 0.1, {}))
    shown = stream.getvalue()
    for step in (1, 2):
        seen = [name for name in names if f"text of {name} in {step}" in shown]
        assert seen == [*names[:4], "model_new.py"]
    assert shown.count("1 lines in all") == 0
    assert shown.count("1 line in all") == 6


def test_a_pipe_gets_more_lines_of_a_file_than_a_terminal_but_not_thousands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "\n".join(f"row {n}" for n in range(3000))
    arguments = json.dumps({"path": "kernels/k.cpp", "text": text})
    with (tmp_path / "log").open("w") as stream, Terminal(stream) as show:
        show(ToolStarted("c", "write", "kernels/k.cpp", arguments))
        show(ToolFinished("c", "write", "written", False, 0.1, {}))
    shown = (tmp_path / "log").read_text()
    assert shown.count("row ") == LOG_LINES
    assert "3000 lines in all" in shown
