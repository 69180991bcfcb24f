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
    """An earlier verdict that is to be given once more."""
    seed: int = 0
    """For the weights."""
    prefetcher: OraclePrefetcher | None = None
    session: Session | None = None
    failure: Exception | None = None
    """Why there is no session: what the verdict will say."""

    def close(self) -> None:
        """End what was begun. Idempotent."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        if self.session is not None:
            self.session.close()
