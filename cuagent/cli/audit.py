"""`cuagent audit`: repeat the verdict of an evidence file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuagent.cli import options
from cuagent.cli.exits import Exit
from cuagent.cli.trust import require_agreement

SHOWN = 12
"""Largest number of contradictions between the record and the repetition that are printed."""


def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Evidence, as verify --evidence writes it.")
    ],
    timing: options.Timing = "none",
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Repeat a recorded verdict, and compare every figure.

    Recorded timings are checked against their own samples, and measured again only on request. The
    task's Python code in the file runs with your rights, like your own module. A file that cuagent
    did not write for you on this machine runs only if you agree: read it first. Exit code 0 if the
    verdict is confirmed, 1 if not, 2 usage, 3 infrastructure.
    """
    from cuagent.audit.audit import audit as judge_again
    from cuagent.config import resolve
    from cuagent.record.evidence import read_evidence
    from cuagent.record.origin import has_valid_mac
    from cuagent.verdict import Reason

    data = read_evidence(file)
    if not has_valid_mac(data):
        require_agreement(
            f"{file}: unknown origin: cuagent did not write this evidence for you on this "
            "machine (or it was changed since, or an older version wrote it). The Python of its "
            "task would be run with your rights",
            "read the task in it",
            trust,
        )
    with options.activity(f"judging again what {file} records", silent=json):
        found = judge_again(data, resolve({}).isolation, options.effort(timing))
    if json:
        from json import dumps

        from cuagent.record import plain

        print(dumps(plain(found) | {"holds": found.holds, "line": found.line}, indent=2))
    else:
        from cuagent.ui.console import say
        from cuagent.ui.text import one_line

        say(one_line(found.line))
        for line in found.contrary[:SHOWN]:
            say(f"  {one_line(line)}")
        if more := found.contrary[SHOWN:]:
            print(f"  and {len(more)} more; --json has all")
        for line in found.circumstances:
            say(f"note: {one_line(line)}")
    if found.holds:
        raise typer.Exit(Exit.OK)
    faulty = found.verdict.reason is Reason.INFRASTRUCTURE
    raise typer.Exit(Exit.INFRASTRUCTURE if faulty else Exit.NO)
