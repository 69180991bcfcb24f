"""`cuagent audit`: judge again what an evidence file says was judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit

SHOWN = 12
"""Lines of what does not hold."""


def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Evidence, as verify --evidence writes it.")
    ],
    timing: options.Timing = "none",
    json: options.Json = False,
) -> None:
    """Re-run a recorded verdict from its own content, on its own seeds: does every figure hold?

    Recorded timings are held against their own samples; measured again only if asked for.
    The task's Python in the file is run as your own module is, with your rights: read it first if
    the file is a stranger's.
    Exit code 0 it holds, 1 it does not, 2 usage, 3 infrastructure.
    """
    from cuagent.audit.audit import audit as judge_again
    from cuagent.config import resolve
    from cuagent.record.evidence import read_evidence
    from cuagent.verdict import Reason

    data = read_evidence(file)
    with options.activity(f"judging again what {file} records", silent=json):
        found = judge_again(data, resolve({}).isolation, options.effort(timing))
    if json:
        from json import dumps

        from cuagent.record import plain

        print(dumps(plain(found) | {"holds": found.holds, "line": found.line}, indent=2))
    else:
        print(found.line)
        for line in found.contrary[:SHOWN]:
            print(f"  {line}")
        if more := found.contrary[SHOWN:]:
            print(f"  and {len(more)} more; --json has all")
        for line in found.circumstances:
            print(f"note: {line}")
    if found.holds:
        raise typer.Exit(Exit.OK)
    faulty = found.verdict.reason is Reason.INFRASTRUCTURE
    raise typer.Exit(Exit.INFRASTRUCTURE if faulty else Exit.NO)
