"""The table of commands, and a group that imports a command's module only when it is called.

`cuagent --help` and the completion of command names read only the table. So no command waits for
the imports of the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "optimize": ("optimize:optimize", "Make a module faster, and prove it."),
    "verify": ("verify:verify", "Build a candidate and judge if it is correct."),
    "audit": (
        "audit:audit",
        "Repeat a recorded verdict, and compare every figure.",
    ),
    "check": (
        "check:check",
        "Check if a verdict can certify an answer to the task.",
    ),
    "baseline": (
        "baseline:baseline",
        "Time every way to run a module faster without a custom kernel.",
    ),
    "profile": ("profile:profile", "Show the time of a module by operator and kernel."),
    "bench": ("bench:bench", "Optimize many tasks, and score them by three rules."),
    "apply": ("apply:apply", "Write the best attempt next to your module."),
    "capture": ("capture:capture", "Run your script and record one of its modules as a task."),
    "export": ("export:export", "Write the result of a run as a package that pip installs."),
    "report": (
        "report:report",
        "Write a run as one HTML page with charts and kernels.",
    ),
    "doctor": (
        "doctor:doctor",
        "Report what this machine has and lacks, and how to fix it.",
    ),
    "runs": ("runs:runs", "List the runs, newest last."),
    "show": (
        "runs:show",
        "Show a run: the result, then each step.",
    ),
    "replay": ("runs:replay", "Replay a recorded run as it was shown live."),
    "mcp": ("mcp:mcp", "Offer the verifier to other agents: an MCP server over stdio."),
    "config": ("config:app", "Show the settings."),
    "synth": ("synth:app", "Make new, verified tasks; audit and grade files of tasks."),
    "train": (
        "cuagent.training.cli:app",
        "Turn runs into a better policy: RFT, value pretraining, PPO.",
    ),
}
"""Commands by name: (`module of cuagent.cli:function`, first sentence of its help)."""


class Commands(TyperGroup):
    """Group of all commands. It knows only the summary of a command until the command is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """Import the module of one command; return the command as typer's command or group."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    place = import_module(module if "." in module else f"cuagent.cli.{module}")
    found = getattr(place, attribute)
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    holder.callback()(_nothing)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        # `capture` passes the options of the user's script on
        holder.command(name, context_settings=getattr(place, "SETTINGS", None))(found)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def _nothing() -> None:
    """Empty callback for typer, which returns a group even for a single command if there is a
    callback."""
