"""`cuagent audit`: judge again what an evidence file says was judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit


def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Evidence, as verify --evidence writes it.")
    ],
    json: options.Json = False,
) -> None:
    """Re-run a recorded verdict from its own content, on its own seeds: does it hold?

    Exit code 0 it holds, 1 it does not, 2 usage, 3 infrastructure.
    """
    from cuagent.config import resolve
    from cuagent.verify.evidence import audit as judge_again
    from cuagent.verify.evidence import read_evidence
    from cuagent.verify.verdict import Reason

    data = read_evidence(file)
    with options.activity(f"judging again what {file} records", silent=json):
        found = judge_again(data, resolve({}).isolation)
    if json:
        from json import dumps

        from cuagent.record import plain

        print(dumps(plain(found), indent=2))
    else:
        print(f"{'holds' if found.holds else 'does not hold'}: {found.said}")
        for line in found.differences:
            print(f"note: {line}" if found.holds else line)
    if found.holds:
        raise typer.Exit(Exit.OK)
    faulty = found.verdict.reason is Reason.INFRASTRUCTURE
    raise typer.Exit(Exit.INFRASTRUCTURE if faulty else Exit.NO)
