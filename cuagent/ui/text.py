"""Format quantities with units, and make foreign text safe to print.

Pure functions from values to strings; `ui.table` arranges them. Text from outside (a log, a tool, a
compiler, a model) goes through `clean`, which removes control sequences. When any text is printed,
`harmless` replaces the control characters that are left (`ui.console`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len

from cuagent.timing import Ratio

TAB = 4


@dataclass(frozen=True)
class Glyphs:
    """Signs that the views print: `UNICODE`, or `ASCII` if the stream cannot encode those."""

    yes: str
    no: str
    unsure: str
    best: str
    call: str
    result: str
    bar: str
    dot: str
    more: str
    spinner: str
    rule: str
    bars: str
    """Bar characters from low to high."""


UNICODE = Glyphs("✓", "✗", "?", "▸", "●", "└", "│", "·", "…", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "─", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("ok", "XX", "?", ">", "*", "`", "|", "-", "...", "|/-\\", "-", "_.-=+*#")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return `UNICODE` if the text encoding can represent its signs, else `ASCII`."""
    signs = "".join(vars(UNICODE).values())
    try:
        signs.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def duration(seconds: float) -> str:
    """Format a measured time with three significant digits: `12.3 us`, `1.50 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        # 0.9995 of a unit already rounds up to it
        if seconds >= 0.9995 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def clock(seconds: float) -> str:
    """Format an elapsed time as on a watch: `0:07`, `12:34`, `1:02:03`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def times(value: float) -> str:
    """Format a ratio without interval: `1.43x`, `12.3x`, `3.57e+06x`."""
    return f"{value:.3g}x" if value >= 1e5 else f"{_three_digits(value)}x"


def ratio(r: Ratio) -> str:
    """Format a ratio with the limits of its interval: `1.43x [1.38, 1.49]`."""
    return f"{times(r.value)} [{_three_digits(r.low)}, {_three_digits(r.high)}]"


def count(number: int) -> str:
    """Format a number of tokens: `950`, `12.3k`, `1.2M`."""
    for unit, scale in (("M", 1_000_000), ("k", 1_000)):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return str(number)


def money(dollars: float) -> str:
    """Format an amount of US dollars: `$1.50`, and below a dollar `$0.123`."""
    return f"${dollars:.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.3f}"


_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, hyperlinks
    r"|\x1b[PX^_].*?(?:\x1b\\|$)"  # DCS, SOS, PM, APC
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]",  # CSI and two-character escapes
    re.DOTALL,
)
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line end, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # reading order of text
    "\u2028\u2029"  # other line ends
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible annotations and tags
    "\ud800-\udfff"  # surrogates, which cannot be encoded
    "]"
)
PLACEHOLDER = "\ufffd"


def harmless(text: str) -> str:
    """Replace each control character by a placeholder; the length stays the same."""
    return _UNSAFE.sub(PLACEHOLDER, text)


def clean(text: str) -> str:
    r"""Remove control sequences; of a line that is overwritten with `\r`, keep only the last
    version."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n")).expandtabs(TAB)
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """Return foreign text on one line, with each run of white space replaced by one blank."""
    return " ".join(clean(text).split())


def clip(text: str, width: int, more: str = "…") -> str:
    """Cut `text` to at most `width` columns of a terminal; a cut text ends with `more`."""
    if cell_len(text) <= width:
        return text
    if width <= cell_len(more):
        return more[: max(width, 0)]
    room, kept = width - cell_len(more), []
    for char in text:
        room -= cell_len(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept).rstrip() + more


RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z0-9-]+")
"""Pattern of the ID of a run (`record/folder.py`)."""


def wrap(text: str, width: int) -> list[str]:
    """Break one line at blanks into pieces of at most `width` columns of a terminal.

    A longer word is cut, after a slash if possible; the ID of a run is never cut.
    """
    lines: list[str] = [""]
    for word in re.findall(r"\S+|\s+", text):
        rest = word
        if cell_len(lines[-1]) + cell_len(rest) > width:
            if lines[-1]:
                lines.append("")
            rest = rest.lstrip()
        while cell_len(rest) > width > 0:
            head = _head(rest, width)
            if head == rest:
                break
            lines[-1] = head
            lines.append("")
            rest = rest[len(head) :]
        lines[-1] += rest
    return [line.rstrip() for line in lines if line.strip()] or [""]


def _head(word: str, width: int) -> str:
    """Return the part of a long word that fits on a line of `width` characters."""
    head = clip(word, width, "") or word[0]
    if "/" in head:
        return head[: head.rindex("/") + 1]
    if name := RUN_ID.match(word):
        return name[0]
    return head


def fold(text: str, head: int, tail: int, more: str = "…") -> list[str]:
    """Return the first `head` and last `tail` lines of foreign text.

    A line between them gives the number of the omitted lines.
    """
    lines = [line.rstrip() for line in clean(text).strip("\n").split("\n")]
    left_out = len(lines) - head - tail
    if left_out <= 1:  # "1 more line" would take as much room as the line
        return lines
    return [*lines[:head], f"{more} {left_out} more lines", *lines[len(lines) - tail :]]


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def indented(line: str, width: int, more: str) -> list[str]:
    """Return a line of a tool's output, indented; prose is wrapped, aligned columns are cut."""
    room = width - 2
    if cell_len(line) <= room:
        return [f"  {line}"]
    if line.startswith(" ") or "  " in line:
        return [f"  {clip(line, room, more)}"]
    first, *rest = wrap(line, room)
    return [f"  {first}", *(f"    {row}" for row in wrap(" ".join(rest), room - 2) if row)]
