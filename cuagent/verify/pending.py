"""A verdict between the freezing of the source and the end of its compilation."""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.attempt import Attempt
from cuagent.verdict import Verdict
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.worker import Session


@dataclass
class PendingVerdict:
    """A verdict that waits for the attempt's libraries. Complete it, or close it."""

    attempt: Attempt
    seeds: Seeds
    again: Verdict | None = None
    """Earlier verdict that is repeated."""
    seed: int = 0
    """Seed of the weights."""
    prefetcher: OraclePrefetcher | None = None
    session: Session | None = None
    failure: Exception | None = None
    """Error that prevented the session; `Referee.complete` turns it into the verdict."""

    def close(self) -> None:
        """Close the prefetcher and the session. Idempotent."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        if self.session is not None:
            self.session.close()
