"""Evidence of a run's verdicts: `evidence/attempt-N-EFFORT.json` beside its log.

Each file is whole by itself: `cuagent audit FILE` builds and judges again from it alone. Kept are
the verdicts that somebody may rely on: of accepted attempts, and all of record. Invariant: like the
log, a file is there whole or not at all, and secrets are masked in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.record.folder import RecordError, RunFolder
from cuagent.record.plain import plain

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.judge import Judgement
    from cuagent.task import Task

RECORD = "record"


def keep_evidence(
    folder: RunFolder,
    task: Task,
    attempt: Attempt,
    judgement: Judgement,
    name: tuple[int, str],
    redact: Callable[[Any], Any],
) -> Path | None:
    """Write the evidence for attempt number and effort `name`; None where nobody relies on it.

    Raises RecordError.
    """
    n, effort = name
    if not (judgement.verdict.accepted or effort == RECORD):
        return None
    from cuagent.verify.evidence import evidence

    timing = None if judgement.timing is None else plain(judgement.timing)
    data = evidence(task, attempt, judgement.build, plain(judgement.verdict), timing)
    target = folder.evidence / f"attempt-{n}-{effort}.json"
    partial = target.with_suffix(".partial")
    try:
        target.parent.mkdir(exist_ok=True)
        partial.write_text(json.dumps(redact(data), allow_nan=False), encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise RecordError(f"{target}: {error.strerror}; the run cannot go on") from error
    return target
