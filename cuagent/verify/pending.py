"""A verdict that has begun while the attempt's libraries are still being compiled."""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.attempt import Attempt
from cuagent.verdict import Verdict
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.worker import Session


@dataclass
class PendingVerdict:
    """A verdict that waits for the attempt's compiled libraries.

    The owner passes it to `Referee.complete` or calls `close`.
    """

    attempt: Attempt
    seeds: Seeds
    again: Verdict | None = None
    """Earlier verdict whose seeds are used again; None for a new verdict."""
    seed: int = 0
    """Seed of the weights."""
    prefetcher: OraclePrefetcher | None = None
    session: Session | None = None
    failure: Exception | None = None
    """Error while the session was opened; `Referee.complete` turns it into a rejection."""

    def close(self) -> None:
        """Close the prefetcher and the session. Idempotent."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        if self.session is not None:
            self.session.close()
