"""The table of commands: summaries equal the help of the commands, and modules load when called."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.core import TyperCommand

from cuagent.cli.commands import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_in_the_table_is_the_first_sentence_of_the_command(name: str) -> None:
    summary = TyperCommand(name, help=COMMANDS[name][1]).get_short_help_str(300)
    command = load(name)
    assert command.name == name
    assert command.get_short_help_str(300) == summary


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        ("--help", []),
        ("runs --help", ["cuagent.cli.options", "cuagent.cli.runs", "cuagent.config"]),
        ("train rft --help", ["cuagent.training.cli"]),
        ("typo", []),
    ],
)  # fmt: skip
def test_command_line_imports_the_called_command_alone(arguments: str, loaded: list[str]) -> None:
    watched = sorted(
        [f"cuagent.cli.{place.partition(':')[0]}" for place, _ in COMMANDS.values()]
        + ["cuagent.training.cli", "cuagent.cli.options", "cuagent.config", "cuagent.task"]
    )
    program = (
        f"import sys, cuagent.cli.main as m; m.run({arguments.split()!r}); "
        f"print(sorted(set({watched!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == repr(loaded)
