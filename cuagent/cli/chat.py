"""State of an interactive session, and functions that show its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from cuagent.cli.user_command import UserCommands
from cuagent.ui.table import label_lines
from cuagent.ui.text import clean, wrap

if TYPE_CHECKING:
    from cuagent.agent import Hook, Run
    from cuagent.agent.tools import Tool
    from cuagent.config import Settings
    from cuagent.models.model import Model
    from cuagent.ui.prompt import Prompt
    from cuagent.ui.terminal import Terminal

NARROWEST = 20
"""Smallest width in characters to which messages are wrapped."""


@dataclass
class Session:
    """An interactive session: run, model, tools, view and prompt."""

    run: Run
    model: Model
    tools: Sequence[Tool]
    settings: Settings
    view: Terminal
    prompt: Prompt
    draft: str = ""
    """Text to put into the input line at the user's next turn."""
    first: tuple[Hook, ...] = ()
    """Hooks that open the run; they are called before those of `INTERACTIVE`."""

    def __post_init__(self) -> None:
        self.user_commands = UserCommands(self.say, self.run.inbox.put)

    def interrupt(self) -> None:
        """Interrupt the agent's step and kill the user's running commands."""
        self.user_commands.end()
        self.run.cancel()

    def say(self, text: str, style: str = "dim") -> None:
        """Show a message, wrapped to the width of the view."""
        lines = (piece for line in clean(text).split("\n") for piece in wrap(line, self.width))
        self.view.say(Text(line, style) for line in lines)

    def say_rows(self, *rows: tuple[str, str]) -> None:
        """Show rows of (label, value) with aligned values, which are never cut."""
        self.view.say(label_lines(rows, self.width))

    @property
    def width(self) -> int:
        return max(self.view.width, NARROWEST)
