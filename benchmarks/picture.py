"""Convert a terminal screen to SVG, as for the pictures of the README.

    tmux new-session -d -s run -x 120 -y 40 'cuagent optimize examples/loss.py'
    tmux capture-pane -e -p -t run | python benchmarks/picture.py docs/optimize.svg

The screen, with ANSI colors, comes from stdin. Not covered: fonts and themes other than rich's.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


def picture(screen: str, title: str) -> str:
    """Return a terminal screen (text with ANSI colors) as SVG text, without empty lines at the
    end."""
    lines = [Text.from_ansi(line) for line in screen.rstrip().splitlines()]
    width = max((cell_len(line.plain.rstrip()) for line in lines), default=1)
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    for line in lines:
        line.truncate(width)
        console.print(line, no_wrap=True)
    return console.export_svg(title=title)


if __name__ == "__main__":
    title = sys.argv[2] if len(sys.argv) > 2 else "cuagent optimize examples/loss.py"
    Path(sys.argv[1]).write_text(picture(sys.stdin.read(), title), encoding="utf-8")
