"""Convert an error that ended a verdict into the reason, the detail and the output of a rejection.

Invariant: the reason blames the candidate for every fault that a candidate can cause, and for no
other fault.
"""

from __future__ import annotations

from cuagent.build import Build
from cuagent.sandbox import SandboxError
from cuagent.task import TaskError
from cuagent.verdict import Reason
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.tally import Rejected
from cuagent.worker import ForkServerError, SessionEnded, Status

# Errors of torch and the system in the referee concern its own process and memory, because the
# candidate's code runs in another process.
MACHINE = (ForkServerError, OracleLost, SandboxError, MemoryError, OSError, RuntimeError)
FORESEEN = (Rejected, SessionEnded, TaskError, *MACHINE)
MAX_MESSAGES = 5
"""Largest number of compiler messages in a verdict."""
MAX_CHARACTERS = 300
"""Largest number of characters of the message about a fault of the machine."""
REASONS = {
    Status.IMPORT_FAILED: Reason.IMPORT_FAILED,
    Status.CONSTRUCT_FAILED: Reason.CONSTRUCT_FAILED,
    Status.STATE_MISMATCH: Reason.STATE_MISMATCH,
    Status.RAISED: Reason.RAISED,
    Status.WRONG_FORM: Reason.WRONG_FORM,
    Status.WROTE_OUTSIDE: Reason.WROTE_OUTSIDE,
    Status.CHANGED_STATE: Reason.CHANGED_INPUT,
    Status.CRASHED: Reason.CRASHED,
    Status.FORGED: Reason.CRASHED,
    Status.TIMED_OUT: Reason.TIMED_OUT,
    Status.LOST: Reason.INFRASTRUCTURE,
}


def explain(failure: BaseException) -> tuple[Reason, str, str]:
    """Return (reason, detail, candidate's output) for an error of one of the types FORESEEN."""
    match failure:
        case Rejected():
            return failure.reason, str(failure), failure.output
        case SessionEnded():
            return REASONS[failure.status], failure.detail, failure.output
        case TaskError():
            return Reason.NOT_CERTIFIABLE, str(failure), ""
    return Reason.INFRASTRUCTURE, " ".join(str(failure).split())[:MAX_CHARACTERS], ""


def build_failure(build: Build) -> Rejected:
    """Return the rejection for a failed build: the first compiler message, then the first few."""
    shown = [
        f"{message.file}:{message.line}: {message.severity}: {message.message}"
        + (f"\n    {message.source_line.strip()}" if message.source_line.strip() else "")
        for message in build.diagnostics[:MAX_MESSAGES]
    ]
    first = build.diagnostics[0] if build.diagnostics else None
    detail = f"{first.file}:{first.line}: {first.message}" if first else "no library was built"
    return Rejected(Reason.BUILD_FAILED, detail, "\n".join(shown))
