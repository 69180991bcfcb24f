"""Format short excerpts of the agent's files with colours: first lines, or the change of an edit.

Only the sixteen standard colours of the terminal are used; they suit dark and light backgrounds.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from rich.cells import cell_len
from rich.text import Text

from cuagent.ui.text import UNICODE, Glyphs, clean, clip

LINES, LOG_LINES = 8, 60
"""Numbers of lines shown of a file or a change: on a terminal, and in a file or a pipe."""
HELPERS = 100
"""Largest number of lines of a header that is shown; a longer one is a library of helpers."""
_HEADERS = (".h", ".hpp", ".cuh")
_FORWARD = "    def forward("
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
    """Return the first `lines` lines of a file, each after a vertical bar.

    Of a longer file comments and imports at the beginning are skipped. A module with a `ModelNew`
    then begins with the forward of that class. Of a long header only the length is returned.
    """
    rows = clean(source).rstrip().split("\n")
    suffix = PurePosixPath(path).suffix
    lines = 0 if suffix in _HEADERS and len(rows) > max(lines, HELPERS) else lines
    skipped = _first_shown(rows) if len(rows) > lines else 0
    shown = rows[skipped : skipped + lines]
    text: list[Text] = []
    if shown:
        coloured = _highlight("\n".join(shown), suffix).split("\n", allow_blank=True)
        text = [_behind_bar(_cut(row, width - 4, glyphs), glyphs) for row in coloured]
    if len(rows) > len(shown):
        text.append(_behind_bar(Text(f"{glyphs.more} {_lines(len(rows))} in all", "dim"), glyphs))
    return text


def change(
    old: str, new: str, width: int, glyphs: Glyphs = UNICODE, most: int = LINES
) -> list[Text]:
    """Return the lines that an edit removes (red, `-`) and adds (green, `+`), at most `most`."""
    before, after = (clean(text).rstrip("\n").split("\n") for text in (old, new))
    while before and after and before[0] == after[0]:  # unchanged context lines
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    rows = [(f"-{row}", "red") for row in before] + [(f"+{row}", "green") for row in after]
    shown = rows if len(rows) <= most else rows[: most // 2] + rows[-most // 2 :]
    text = [
        _behind_bar(Text(clip(row, width - 4, glyphs.more), style), glyphs) for row, style in shown
    ]
    if len(rows) > len(shown):
        rest = Text(f"{glyphs.more} {len(rows) - len(shown)} more lines", "dim")
        text.insert(most // 2, _behind_bar(rest, glyphs))
    return text


def replaced(diff: str, width: int, glyphs: Glyphs = UNICODE, most: int = 2 * LINES) -> list[Text]:
    """Return the coloured unified diff of a file that was replaced as a whole, at most `most`
    lines."""
    rows = clean(diff).rstrip().split("\n")
    gone, new = (sum(row.startswith(sign) for row in rows) for sign in "-+")
    shown = rows if len(rows) <= most else rows[: max(most - 1, 0)]
    colours = {"-": "red", "+": "green", "@": "cyan"}
    count = f"replaced: {_lines(gone)} out, {_lines(new)} in"
    text = [_behind_bar(Text(count, "dim"), glyphs)]
    for row in shown:
        style = colours.get(row[:1], "dim")
        text.append(_behind_bar(Text(clip(row, width - 4, glyphs.more), style), glyphs))
    if len(rows) > len(shown):
        rest = Text(f"{glyphs.more} {len(rows) - len(shown)} more lines", "dim")
        text.append(_behind_bar(rest, glyphs))
    return text


def written(
    tool: str,
    arguments: str,
    width: int,
    glyphs: Glyphs = UNICODE,
    lines: int = LINES,
    diff: str = "",
) -> list[Text]:
    """Return lines that show what a tool call changes, if it is a `write` or an edit; else [].

    `diff` is the change that a `write` made to an existing file.
    """
    if tool == "write" and diff:
        return replaced(diff, width, glyphs, 2 * lines)
    try:
        match tool, json.loads(arguments or "{}", strict=False):
            case "write", {"path": str(path), "text": str(text)}:
                return excerpt(path, text, width, glyphs, lines)
            case "edit", {"old": str(old), "new": str(new)}:
                return change(old, new, width, glyphs, lines)
            case "multi_edit", {"edits": [*edits]}:
                pairs = [(str(e["old"]), str(e["new"])) for e in edits]
                return [row for pair in pairs for row in change(*pair, width, glyphs, lines)]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # the tool's own answer names the error
    return []


def _lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"


def _first_shown(rows: list[str]) -> int:
    """Return the index of the first line that an excerpt shows: the forward of `ModelNew`, else
    the first line after the preamble."""
    found = [i for i, row in enumerate(rows) if row.startswith("class ModelNew")]
    start = found[0] if found else len(rows)
    forward = (i for i in range(start, len(rows)) if rows[i].startswith(_FORWARD))
    return next(forward, _preamble(rows))


def _preamble(rows: list[str]) -> int:
    """Return the number of lines with includes, imports, comments or blanks at the beginning.

    It is 0 if no other lines follow.
    """
    for i, row in enumerate(rows):
        if row.strip() and not row.lstrip().startswith(("#", "//", "import ", "from ", '"""')):
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
