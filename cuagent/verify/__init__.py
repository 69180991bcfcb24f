"""Decide if an attempt is right: `Referee.verify` returns a `Verdict`.

See docs/concepts/verifier.md.
"""

from cuagent.verdict import Draw, Reason, RuleResult, Verdict
from cuagent.verify.batch import Batch
from cuagent.verify.referee import Referee

__all__ = ["Batch", "Draw", "Reason", "Referee", "RuleResult", "Verdict"]
