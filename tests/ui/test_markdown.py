"""Text of the model: Markdown is rendered block by block without loss."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cuagent.events import TextDelta, ToolStarted
from cuagent.ui.markdown import Blocks, rendered
from cuagent.ui.terminal import Terminal

TEXT = """# Plan
It is **memory bound**; see `kernels/a.cpp`.
Next line.

1. read once
2. fuse

```cpp
// two

int x = 1;
```
The end.
"""
BLOCKS = [
    "# Plan",
    "It is **memory bound**; see `kernels/a.cpp`.\nNext line.\n",
    "1. read once\n2. fuse\n",
    "```cpp\n// two\n\nint x = 1;\n```",
    "The end.\n",
]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_come_as_soon_as_they_are_finished(size: int) -> None:
    blocks, found = Blocks(), []
    for at in range(0, len(TEXT), size):
        found += blocks.feed(TEXT[at : at + size])
    assert found == BLOCKS[:4]
    assert blocks.open == "The end."
    assert blocks.end() == BLOCKS[4:]
    assert not blocks.open


def shown(block: str, width: int = 40) -> list[str]:
    return [line.plain for line in rendered(block, Console(file=io.StringIO()), width)]


def test_marks_are_shown_and_not_written() -> None:
    assert shown(BLOCKS[0]) == ["Plan"]
    assert shown(BLOCKS[1]) == ["It is memory bound; see kernels/a.cpp.", "Next line."]
    assert shown(BLOCKS[3]) == ["// two", "", "int x = 1;"]
    assert shown("- " + "word " * 12, 30)[1].startswith("   word"), "wrapped below its bullet"


@pytest.mark.parametrize(
    "text",
    ["vector<float> of <T> & co", "a*b*c", "its __init__ of a_b_c", "x < y > z", "[0] and [1](2"],
)
def test_what_is_code_without_backticks_loses_nothing(text: str) -> None:
    assert shown(text) == [text]


@pytest.mark.parametrize("footer", [True, False])
def test_markdown_is_rendered_on_a_terminal_and_raw_in_a_pipe(footer: bool) -> None:
    for is_terminal in (True, False):
        stream = io.StringIO()
        with Terminal(stream, footer=footer) as show:
            show.console._force_terminal = is_terminal
            for at in range(0, len(TEXT), 5):
                show(TextDelta(TEXT[at : at + 5]))
            if is_terminal and footer:
                assert show.footer_lines(80)[0] == "The end."
            show(ToolStarted("c", "read", "a.py"))
        assert ("**memory bound**" in stream.getvalue()) is not is_terminal
        assert "The end." in stream.getvalue()
