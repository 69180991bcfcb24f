"""Properties of one draw that determine the bounds of the strict rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.inputs.kinds import EXACT, ROUND, Inputs
from cuagent.verify.rules.bounds import Sums, is_exact_probe, may_jump

if TYPE_CHECKING:
    from cuagent.verify.trace.reductions import Terms


@dataclass(frozen=True)
class DrawFacts:
    """Properties of one draw that determine the bounds of the strict rule."""

    kind: Inputs
    terms: Terms
    admitted: Precision
    unit: float
    """Unit roundoff with which the sensitivity was measured (`bounds.coarsest`)."""
    line_unit: float
    """Unit roundoff for bounds on a line: `unit` without the reference's own products.

    Their error is part of a line's bound.
    """
    undecided: bool
    """True if roundoff decides some comparison or choice (`Sensitivity.undecided`)."""
    certain: bool
    """True if roundoff decides no comparison or choice on this draw (`Expected.certain`)."""
    explain: bool
    """True if a refusal describes the wrong elements."""

    @property
    def decides_truth(self) -> bool:
        """True if a boolean output must be right even at a near-tie."""
        if self.certain or not is_exact_probe(self.kind, self.admitted):
            return self.certain and self.kind in EXACT
        return self.kind not in (Inputs.BRINK, Inputs.HALVES)

    @property
    def decides_exactly(self) -> bool:
        """True if a correct kernel decides every comparison as the reference does."""
        return self.certain and self.kind in ROUND

    def jumps(self, sums: Sums) -> bool:
        """Return True if roundoff may put a correct kernel's result on the other side of a jump."""
        if self.decides_exactly:
            return False
        return self.undecided or may_jump(sums, self.kind, self.admitted)
