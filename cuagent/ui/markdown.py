"""Render streamed Markdown of a model for a terminal, block by block.

A block ends at a blank line, at the end of a code fence, or after a heading. Of an unfinished block
only the last line is available (`Blocks.open`), unrendered. Only the sixteen standard colours are
used.

Not covered: syntax that refers to other blocks (footnotes, references).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.markdown import Markdown

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_CODE = re.compile(r"(`+[^`]*`+)")
_DUNDER = re.compile(r"\b__(\w+?)__\b")
_WITHIN = re.compile(r"(?<=\w)\*(?=\w)")
STYLES = {
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.block_quote": "dim",
    "markdown.item.bullet": "cyan",
    "markdown.item.number": "cyan",
    "markdown.link": "underline",
    "markdown.link_url": "dim",
}


class Blocks:
    """Splits a Markdown text that arrives in pieces into blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""

    @property
    def open(self) -> str:
        """The last line of the unfinished block."""
        return self._rest or (self._lines[-1] if self._lines else "")

    def feed(self, piece: str) -> list[str]:
        """Add a piece of text and return the blocks that are now complete."""
        *lines, self._rest = (self._rest + piece).split("\n")
        return [block for line in lines if (block := self._take(line))]

    def end(self) -> list[str]:
        """Return the unfinished rest as a last block, in a list; [] if it is empty."""
        self._lines.append(self._rest)
        self._rest = self._fence = ""
        return [block] if (block := self._cut()) else []

    def _take(self, line: str) -> str:
        """Add a line; return the block that ends with it, or ""."""
        fence = _FENCE.match(line)
        if self._fence:
            self._lines.append(line)
            if not line.strip().startswith(self._fence):
                return ""
            self._fence = ""
            return self._cut()
        if fence:
            before = self._cut()
            self._fence = fence[1]
            self._lines.append(line)
            return before
        self._lines.append(line)
        return self._cut() if not line.strip() or _HEADING.match(line) else ""

    def _cut(self) -> str:
        block = "\n".join(self._lines)
        self._lines = []
        return block if block.strip() else ""


def rendered(block: str, console: Console, width: int) -> Iterator[Text]:
    """Yield the rendered lines of a block, at most `width` characters wide, without padding."""
    from rich.theme import Theme

    with console.use_theme(Theme(STYLES)):
        options = console.options.update(width=width)
        rows = console.render_lines(_markdown(block.strip("\n")), options, pad=False)
    lines = [Text.assemble(*((s.text, s.style or "") for s in row)) for row in rows]
    for line in lines:
        line.rstrip()
    while lines and not lines[0].plain:
        del lines[0]
    while lines and not lines[-1].plain:
        del lines[-1]
    yield from lines


def _markdown(block: str) -> Markdown:
    from markdown_it import MarkdownIt
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax

    class Plain(Heading):
        """Heading that is left-aligned and has no box."""

        def __rich_console__(self, console: Any, options: Any) -> Any:
            self.text.justify = "left"
            self.text.stylize("bold")
            yield self.text

    class Code(CodeBlock):
        """Code block without a background; long lines are broken."""

        def __rich_console__(self, console: Any, options: Any) -> Any:
            code, name = str(self.text).rstrip(), self.lexer_name
            yield Syntax(code, name, theme="ansi_dark", background_color="default", word_wrap=True)

    class Ours(Markdown):
        """Markdown without HTML, so that `vector<float>` is not taken for a tag."""

        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": Plain,
            "fence": Code,
            "code_block": Code,
        }

        def __init__(self, markup: str) -> None:
            super().__init__(markup, hyperlinks=False)
            parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
            self.parsed = parser.parse(markup)

    return Ours(block if _FENCE.match(block) else _literal(block))


def _literal(block: str) -> str:
    """Escape code and formulas outside backticks, so that they are shown as written.

    Covers `__init__`, `a*b*c`, and line ends, which Markdown would join.
    """
    spans = _CODE.split(block)
    for at in range(0, len(spans), 2):  # between the code spans
        spans[at] = _WITHIN.sub(r"\\*", _DUNDER.sub(r"\\_\\_\1\\_\\_", spans[at]))
    return "".join(spans).replace("\n", "  \n")
