"""Redraw the footer of a terminal when its window becomes narrower.

The terminal then breaks each line that no longer fits into several. prompt_toolkit counts the lines
as it wrote them, so it would erase too few and leave pieces on the screen.

Not covered: a terminal that cuts lines instead of breaking them; there a line of the transcript is
lost.
"""

from __future__ import annotations

from typing import Any

from prompt_toolkit.application import Application


class Footer:
    """Widths of the footer lines that were drawn last, and the position of the cursor."""

    def __init__(self) -> None:
        self._columns = 0
        """Largest width of the window while the footer was drawn last."""
        self._above: list[int] = []
        """Width in characters of each line above the cursor's line."""
        self._cursor = 0
        """Number of characters to the left of the cursor."""

    def remember(self, app: Application[Any]) -> None:
        """Record the drawn lines and the cursor. Call it after drawing."""
        self._columns = max(self._columns, app.output.get_size().columns)
        screen = app.renderer.last_rendered_screen
        if screen is None:
            self._above, self._cursor = [], 0
            return
        cursor = screen.get_cursor_position(app.layout.current_window)
        rows = (screen.data_buffer[y] for y in range(cursor.y))
        self._above = [
            max((x + 1 for x, cell in row.items() if cell.char != " "), default=0) for row in rows
        ]
        self._cursor = cursor.x

    def follow(self, app: Application[Any]) -> None:
        """Erase the lines that a narrower window has broken. Call it before drawing."""
        columns = app.output.get_size().columns
        drawn, self._columns = self._columns, columns
        if not columns < drawn:
            return
        broken = sum(max(width - 1, 0) // columns for width in self._above)
        up = len(self._above) + broken + self._cursor // columns
        app.output.cursor_up(up)
        app.output.write_raw("\r")
        app.output.erase_down()
        app.renderer.reset()

    def follow_erasing(self, app: Application[Any]) -> None:
        """Call `follow` also before the footer is erased, which happens to print text above it."""
        renderer = app.renderer
        erase = renderer.erase

        def followed(leave_alternate_screen: bool = True) -> None:
            self.follow(app)
            erase(leave_alternate_screen)

        renderer.erase = followed  # type: ignore[method-assign]
