"""`cuagent config show`: the settings that hold here, each with where it comes from."""

from __future__ import annotations

import typer

from cuagent.cli.options import Json

app = typer.Typer(help="Look at the settings.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Look at the settings."""
    if context.invoked_subcommand is None:
        show()


@app.command()
def show(json: Json = False) -> None:
    """Show each setting and its origin: flag, variable, file or default."""
    from cuagent.config import KEYS, TABLES, resolve

    settings = resolve()
    if json:
        from json import dumps

        rows = {
            key: {"value": getattr(settings, key), "origin": settings.origins[key]} for key in KEYS
        }
        print(dumps(rows, indent=2))
        return
    names = [f"{table}.{name}" for table in TABLES for name in getattr(settings, table)]
    first = max(map(len, KEYS))
    values = {key: str(getattr(settings, key)) for key in KEYS}
    second = max(map(len, values.values()))
    for key in KEYS:
        print(f"{key:<{first}}  {values[key]:<{second}}  {settings.origins[key]}")
    for name in names:
        print(f"{name}  {settings.origins[name.partition('.')[0]]}")
