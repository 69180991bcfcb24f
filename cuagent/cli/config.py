"""`cuagent config show`: print the settings in use, each with its origin."""

from __future__ import annotations

import typer

from cuagent.cli.exits import print_stderr
from cuagent.cli.options import Json
from cuagent.cli.trust import is_agreed

app = typer.Typer(help="Show the settings.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Show the settings."""
    if context.invoked_subcommand is None:
        show()


@app.command()
def show(json: Json = False) -> None:
    """Show each setting and its origin: flag, variable, file or default."""
    from cuagent.config import KEYS, TABLES, resolve

    settings = resolve(dict.fromkeys(KEYS), accept=is_agreed)
    for line in settings.ignored.values():
        print_stderr(line)
    if json:
        from json import dumps

        rows = {
            key: {"value": getattr(settings, key), "origin": settings.origins[key]} for key in KEYS
        }
        print(dumps(rows, indent=2))
        return
    from cuagent.ui.console import say

    names = [f"{table}.{name}" for table in TABLES for name in getattr(settings, table)]
    first = max(map(len, KEYS))
    values = {key: str(getattr(settings, key)) for key in KEYS}
    second = max(map(len, values.values()))
    for key in KEYS:
        say(f"{key:<{first}}  {values[key]:<{second}}  {settings.origins[key]}")
    for name in names:
        say(f"{name}  {settings.origins[name.partition('.')[0]]}")
