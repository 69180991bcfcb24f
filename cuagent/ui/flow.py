"""Wrap streamed text at blanks while it arrives.

Written characters never move, so nothing flickers. A word is therefore written only when it is
complete. The text is returned, not printed.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(r"\n|[^\S\n]+|\S+")


class Flow:
    """Wraps one streamed text to `width` characters; None leaves its lines as they are."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self._column = 0
        self._has_text = False
        self._newlines = 0
        self._blank = ""
        self._partial_word = ""

    def feed(self, piece: str) -> str:
        """Add a piece of text and return the text that can be written now."""
        tokens = _TOKEN.findall(self._partial_word + piece)
        self._partial_word = ""
        if tokens and not tokens[-1].isspace() and cell_len(tokens[-1]) < (self.width or 80):
            self._partial_word = tokens.pop()
        return "".join(map(self._take, tokens))

    def end(self) -> str:
        """Return the text that is not written yet, with a line end if there was any text."""
        rest = self._take(self._partial_word) if self._partial_word else ""
        return rest + ("\n" if self._has_text else "")

    def _take(self, token: str) -> str:
        if token == "\n":
            self._newlines += 1
            self._blank = ""
            return ""
        if token.isspace():
            self._blank += token  # white space may arrive in pieces
            return ""
        # blank lines wait for the text after them, so that none is left at the end
        before = "\n" * min(self._newlines, 2) if self._has_text else ""
        if before:
            self._column = 0
        room = self._column + cell_len(self._blank) + cell_len(token)
        if self.width is not None and self._column and room > self.width:
            before, self._column, self._blank = before + "\n", 0, ""
        text = before + self._blank + token
        self._column += cell_len(self._blank) + cell_len(token)
        if self.width is not None:
            # a word longer than the line is broken by the terminal
            self._column = (self._column - 1) % self.width + 1
        self._has_text, self._newlines, self._blank = True, 0, ""
        return text
