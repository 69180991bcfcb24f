"""Short highlighted excerpts of what the agent writes: a file's first lines, or a diff.

Colours are the terminal's own sixteen, so that they suit a dark and a light background alike.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from rich.cells import cell_len
from rich.text import Text

from cuagent.ui.text import UNICODE, Glyphs, clean, clip

LINES = 8
_LANGUAGES = {
    ".cu": "cuda",
    ".cuh": "cuda",
    ".cpp": "cpp",
    ".h": "cpp",
    ".hpp": "cpp",
    ".py": "python",
    ".md": "markdown",
    ".json": "json",
    ".toml": "toml",
}


def excerpt(
    path: str, source: str, width: int, glyphs: Glyphs = UNICODE, lines: int = LINES
) -> list[Text]:
    """The first telling lines of a file, behind a bar; comments at the top are passed over."""
    rows = clean(source).rstrip().split("\n")
    skipped = _preamble(rows)
    shown = rows[skipped : skipped + lines]
    coloured = _highlight("\n".join(shown), PurePosixPath(path).suffix)
    text = [
        _behind_bar(_cut(row, width - 4, glyphs), glyphs)
        for row in coloured.split("\n", allow_blank=True)
    ]
    if len(rows) > len(shown):
        text.append(_behind_bar(Text(f"{glyphs.more} {len(rows)} lines", "dim"), glyphs))
    return text


def diff_excerpt(diff: str, width: int, glyphs: Glyphs = UNICODE, lines: int = LINES) -> list[Text]:
    """The changed lines of a unified diff, added in green with `+`, removed in red with `-`."""
    changed = [
        row
        for row in clean(diff).split("\n")
        if row[:1] in ("+", "-") and not row.startswith(("+++", "---"))
    ]
    text = [
        _behind_bar(
            Text(clip(row, width - 4, glyphs.more), "green" if row[0] == "+" else "red"), glyphs
        )
        for row in changed[:lines]
    ]
    if len(changed) > lines:
        rest = Text(f"{glyphs.more} {len(changed)} changed lines", "dim")
        text.append(_behind_bar(rest, glyphs))
    return text


def _preamble(rows: list[str]) -> int:
    """How many rows at the top are includes, imports, comments or blank; 0 when all are."""
    for i, row in enumerate(rows):
        if row.strip() and not row.lstrip().startswith(("#", "//", "import ", "from ")):
            return i
    return 0


def _highlight(source: str, suffix: str) -> Text:
    from rich.syntax import Syntax

    language = _LANGUAGES.get(suffix)
    if language is None:
        return Text(source)
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(source)
    text.rstrip()
    return text


def _cut(row: Text, width: int, glyphs: Glyphs) -> Text:
    if row.cell_len <= width:
        return row
    row.truncate(max(width - cell_len(glyphs.more), 0))
    return row.append(glyphs.more)


def _behind_bar(row: Text, glyphs: Glyphs) -> Text:
    return Text.assemble((f"  {glyphs.bar} ", "dim"), row)
