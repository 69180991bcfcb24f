"""What a verdict says of whatever broke it off: whose fault it was, and in one line what happened.

Invariant: what a candidate can bring about is its own fault, and nothing else is.
"""

from __future__ import annotations

from cuagent.build import Build
from cuagent.sandbox import SandboxError
from cuagent.task import TaskError
from cuagent.verdict import Reason
from cuagent.verify.oracle.client import OracleLost
from cuagent.verify.tally import Rejected
from cuagent.worker import ForkServerError, SessionEnded, Status

# What torch and the system raise in the referee comes from its own process and memory: the
# candidate's code runs in another one.
MACHINE = (ForkServerError, OracleLost, SandboxError, MemoryError, OSError, RuntimeError)
FORESEEN = (Rejected, SessionEnded, TaskError, *MACHINE)
SHOWN = 5
"""Messages of the compiler in a verdict."""
LONGEST = 300
"""Characters of a fault of the machine's."""
REASONS = {
    Status.IMPORT_FAILED: Reason.IMPORT_FAILED,
    Status.CONSTRUCT_FAILED: Reason.CONSTRUCT_FAILED,
    Status.STATE_MISMATCH: Reason.STATE_MISMATCH,
    Status.RAISED: Reason.RAISED,
    Status.WRONG_FORM: Reason.WRONG_FORM,
    Status.WROTE_OUTSIDE: Reason.WROTE_OUTSIDE,
    Status.CRASHED: Reason.CRASHED,
    Status.FORGED: Reason.CRASHED,
    Status.TIMED_OUT: Reason.TIMED_OUT,
    Status.LOST: Reason.INFRASTRUCTURE,
}


def explain(failure: BaseException) -> tuple[Reason, str, str]:
    """Reason, detail and the candidate's output, for one of FORESEEN."""
    match failure:
        case Rejected():
            return failure.reason, str(failure), failure.output
        case SessionEnded():
            return REASONS[failure.status], failure.detail, failure.output
        case TaskError():
            return Reason.NOT_CERTIFIABLE, str(failure), ""
    return Reason.INFRASTRUCTURE, " ".join(str(failure).split())[:LONGEST], ""


def build_failure(build: Build) -> Rejected:
    """The first message as the detail, the first few as output."""
    shown = [
        f"{message.file}:{message.line}: {message.severity}: {message.message}"
        + (f"\n    {message.source_line.strip()}" if message.source_line.strip() else "")
        for message in build.diagnostics[:SHOWN]
    ]
    first = build.diagnostics[0] if build.diagnostics else None
    detail = f"{first.file}:{first.line}: {first.message}" if first else "no library"
    return Rejected(Reason.BUILD_FAILED, detail, "\n".join(shown))
