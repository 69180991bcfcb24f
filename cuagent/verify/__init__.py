"""Right or wrong, and why: `Referee.verify` gives a `Verdict`. See docs/VERIFIER.md."""

from cuagent.verify.batch import Batch
from cuagent.verify.referee import Referee
from cuagent.verify.verdict import Draw, Reason, RuleResult, Verdict

__all__ = ["Batch", "Draw", "Reason", "Referee", "RuleResult", "Verdict"]
