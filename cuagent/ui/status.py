"""Format the live status line of a run to the width of the terminal.

Pure functions; `ui.terminal` decides when and where the line is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from cuagent.ui.text import UNICODE, Glyphs, clip, clock, count, money, times


@dataclass(frozen=True)
class Status:
    """Figures for the status line; None for those not known yet."""

    step: int = 0
    best: float | None = None
    """Speedup of the best attempt over its best baseline."""
    tokens: int = 0
    cost: float | None = None
    """Cost in US dollars; hidden if zero."""
    activity: str = ""
    """Text about the operation in progress."""
    sure: bool = True
    """False if the interval of `best` is inconclusive."""

    @property
    def best_text(self) -> str:
        """`best 1.43x`, with a question mark if the interval is inconclusive; "" if not known
        yet."""
        return "" if self.best is None else f"best {times(self.best)}{'' if self.sure else '?'}"

    def parts(self, seconds: float) -> list[str]:
        """Return the known figures as texts, the most important first; `seconds` is the run's
        time."""
        parts = [
            f"step {self.step}" if self.step else "",
            clock(seconds),
            self.best_text,
            f"{count(self.tokens)} tokens" if self.tokens else "",
            money(self.cost) if self.cost else "",
        ]
        return [part for part in parts if part]

    def line(
        self, seconds: float, width: int, glyphs: Glyphs = UNICODE, tick: int | None = None
    ) -> str:
        """Return the status line, at most `width` characters.

        `tick` advances the spinner; None leaves it out, for a run that waits for the user.
        """
        figures = self.parts(seconds)
        dot = f" {glyphs.dot} "
        # While the run waits, the keys that the user can press matter more than tokens and cost.
        activity = [self.activity] if self.activity else []
        while tick is None and len(figures) > 2 and _width([*figures, *activity], dot) > width:
            figures.pop()
        parts = [*figures, *activity]
        spin = "" if tick is None else glyphs.spinner[tick % len(glyphs.spinner)] + " "
        line = spin + parts[0]
        for part in parts[1:]:
            room = width - cell_len(line) - cell_len(dot)
            if cell_len(part) <= room:
                line += dot + part
            elif part == self.activity and room >= 8:
                line += dot + clip(part, room, glyphs.more)
        return clip(line, width, "")


def _width(parts: list[str], dot: str) -> int:
    return cell_len(dot.join(parts))
