"""Entry point of the command line, and the one place where errors become exit codes."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from cuagent.cli.commands import Commands
from cuagent.cli.exits import Exit, crashes_to, exit_for, print_stderr

# Plain help texts: rich takes longer to import than all the rest.
app = typer.Typer(
    name="cuagent",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(
    invoke_without_command=True,
    epilog="Exit codes: 0 ended normally or accepted, 1 rejected or failed, 2 usage, "
    "3 infrastructure, 130 interrupted.",
)
def cuagent(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Make a PyTorch module faster with custom kernels, and prove it."""
    if version:
        from cuagent import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line of this process and exit with its exit code."""
    # SIGTERM ends a run as Ctrl-C does: completely, with its results saved
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line `arguments` and return its exit code."""
    # some versions of typer vendor click under another name
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        with crashes_to(None):
            code = app(arguments, prog_name="cuagent", standalone_mode=False)
    except SystemExit as end:
        # click exits so on a closed pipe (`| head`), which is normal
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return Exit.OK
    except typer.Abort:  # Ctrl-C outside of a run, in older versions
        print_stderr("interrupted")
        return Exit.INTERRUPTED
    except usage_error as error:
        print_stderr(_usage(error))
        return Exit.USAGE
    except Exception as error:  # the process boundary; `exit_for` tells which are foreseen
        code = exit_for(error)
        if code is None:
            raise
        print_stderr(str(error))
    if code == Exit.INTERRUPTED and not isinstance(code, Exit):  # typer's own, which is silent
        print_stderr("interrupted")
    return int(code or 0)


def _usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cuagent"
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return f"{text.rstrip('.')}; see {command} --help"
