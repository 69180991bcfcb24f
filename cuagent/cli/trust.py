"""Ask the user before something of unknown origin is used.

Files that cuagent wrote for this user on this machine have an authentication code
(`record/origin.py`). All others may come from a third party, for instance in a cloned repository.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cuagent.cli.exits import Refused, print_stderr

if TYPE_CHECKING:
    from cuagent.config import Proposal, Settings
    from cuagent.record import RunFolder


def require_trusted_run(folder: RunFolder, does: str, trust: bool, *, ask: bool = True) -> bool:
    """Return True if this user made the run on this machine, False if the user agrees to use it.

    Other runs are used only if `trust` is set or the user agrees; `does` tells the user what will
    happen. Raises RecordError, and Refused if the user does not agree.
    """
    from cuagent.record.origin import Origin

    if (origin := folder.origin) is Origin.HERE:
        return True
    why = (
        "log incomplete: records at its end were removed after cuagent wrote them. "
        if origin is Origin.INCOMPLETE
        else "unknown origin: cuagent did not make this run for you on this machine "
        "(it came with a repository, was copied or changed, or is of an older version). "
    )
    require_agreement(
        f"{folder.id}: {why}{does}",
        f"read it with: cuagent show {folder.id}",
        trust,
        ask=ask,
    )
    return False


def require_agreement(what: str, first: str, trust: bool, *, ask: bool = True) -> None:
    """Ask the user on a terminal for consent, unless `trust`.

    `what` says what needs consent, and `first` what to do before agreeing. `ask=False` refuses
    without a question, for instance while a session reads the keyboard. Raises Refused if the user
    does not agree or cannot be asked.
    """
    if trust:
        return
    if not (ask and can_ask()):
        raise Refused(f"{what}; {first}, then give --trust to accept it")
    from cuagent.ui.text import one_line

    print_stderr(what)
    if not typer.confirm(one_line(f"{first}. Continue?"), err=True):
        raise Refused("nothing was done")


def can_ask() -> bool:
    """Return True if stdin and stderr are terminals, so that the user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def resolve_settings(flags: Mapping[str, Any], trust: bool) -> Settings:
    """Return the settings of a command from its flags, environment variables and files.

    Warnings are printed on stderr. Some settings of a project's file need the user's consent: ask,
    unless `trust`, and ignore them if the user does not agree. Raises ConfigError.
    """
    from cuagent.config import resolve

    def accept(proposal: Proposal) -> bool:
        if trust or is_agreed(proposal):
            print_stderr(
                f"{proposal}; applied: {'--trust is set' if trust else 'you agreed to it before'}"
            )
            return True
        if not can_ask():
            return False
        print_stderr(str(proposal))
        if not typer.confirm("Apply it?", err=True):
            return False
        _remember(proposal)
        return True

    settings = resolve(flags, accept=accept)
    for key in settings.ignored.keys() & flags.keys():
        print_stderr(settings.ignored[key])
    return settings


def is_agreed(proposal: Proposal) -> bool:
    """Return True if the user has accepted the values in this proposal before."""
    return _agreement(proposal).is_file()


def _remember(proposal: Proposal) -> None:
    path = _agreement(proposal)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(f"{proposal}\n", encoding="utf-8", errors="replace")
    except OSError as error:
        print_stderr(f"{path}: {error.strerror or error}; you will be asked again")


def _agreement(proposal: Proposal) -> Path:
    from cuagent.record.origin import state_folder

    return state_folder() / "agreed" / proposal.digest
