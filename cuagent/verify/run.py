"""Run one verification: rounds of draws, two calls per draw, and the referee's checks.

Inputs come from the oracle. The right answer is requested only after the calls (`calls.py`). One of
the two calls is single, with poison in all memory that the candidate allocates. The other is in a
block with the calls of other draws, in the form in which calls are timed. The order of the two
alternates from block to block. The referee opens and closes all objects used here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cuagent.device_lock import ALONE, Sharing
from cuagent.verdict import Reason
from cuagent.verify.calls import Calls
from cuagent.verify.context import VerifyContext
from cuagent.verify.inputs.kinds import LENIENT, MAX_SWEEP, SWEEPS, Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.oracle.client import SensitivityQuery
from cuagent.verify.outputs import KeptOutput, are_equal, holds_poison
from cuagent.verify.plan import PlannedRound
from cuagent.verify.prefetch import OraclePrefetcher
from cuagent.verify.rules.nonfinite import nonfinite_differences
from cuagent.verify.rules.tolerance import constants
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.tally import Rejected, Tally, Trial, When
from cuagent.verify.threads import one_thread_if_small
from cuagent.worker import Session
from cuagent.worker.giving_way import run_giving_way
from cuagent.worker.memory.arena import POISONS, synchronize
from cuagent.worker.memory.fingerprint import Fingerprint

if TYPE_CHECKING:
    from torch import Tensor

PAIRS_PER_PERTURBATION = 3
"""Number of perturbation pairs in a sensitivity query per perturbed run that measured the spread.

For a quick reference these are 24 pairs.
"""

EXTRA_DRAWS = 2
"""Number of further draws that decide about a failed draw whose errors roundoff alone may
explain."""
DEFERRED = (
    f"past its bound, but not by more than roundoff can cause; {EXTRA_DRAWS} other draws decide"
)
"""Note on a draw whose failure does not count."""


@dataclass(frozen=True)
class _Result:
    """The oracle's answer to one draw, with the findings on the candidate's outputs."""

    expected: Expected
    findings: list[Finding]
    perturbations: int

    @property
    def steep(self) -> bool:
        """True if the draw failed, but each excess error is within the sensitivity of its
        element.
        """
        return not all(f.passed for f in self.findings) and all(
            f.passed or f.within_sensitivity for f in self.findings
        )

    def deferred(self) -> _Result:
        """Return a copy in which failed findings pass, because other draws decide."""
        findings = [
            f if f.passed else replace(f, passed=True, ratio=1.0, note=DEFERRED)
            for f in self.findings
        ]
        return replace(self, findings=findings)


class VerificationRun:
    """Runs the rounds of one verdict. Methods raise Rejected, SessionEnded, OracleLost."""

    def __init__(
        self,
        context: VerifyContext,
        prefetcher: OraclePrefetcher,
        session: Session,
        tally: Tally,
        call_s: float,
        seeds: Seeds,
        sharing: Sharing = ALONE,
    ) -> None:
        """Prepare a run; `call_s` is the time limit of one call in seconds.

        `seeds` continues the plan's seeds, for unplanned draws. `sharing` releases the device for a
        waiting timing: between groups of draws, and while the session constructs a model, which is
        stopped then.
        """
        self._sharing = sharing
        self.context = context
        self.prefetcher = prefetcher
        self.seeds = seeds
        self._in_extra_draws = False
        """True during `_make_extra_draws`, when a failed draw is final."""
        self.session = session
        self.tally = tally
        self.calls = Calls(context, prefetcher, session, tally, call_s)
        self._poisons = itertools.cycle(POISONS)
        self._block_first = itertools.cycle((False, True))
        device = context.task.device.value
        self._fingerprint = Fingerprint.random(device) if context.facts.large else None

    def run(self) -> None:
        """Run all rounds. The session must construct its models from the seed of the weights."""
        self.context.outputs.mend_guards()
        with one_thread_if_small(self.context):
            self._rounds()

    def _rounds(self) -> None:
        for number, planned in enumerate(self.prefetcher.planned):
            with self.tally.clock("oracle"):
                self.prefetcher.load_weights(number)
            with self.tally.clock("worker"):
                fresh = planned.round.fresh
                load = partial(self.session.load, self.context.weights, fresh=fresh, several=True)
                run_giving_way(load, self.session, self._sharing)
            self._round(planned)
            if (worst := self.tally.worst_in_use()) is not None:
                self._retry_in_new_model(worst)
            if self.tally.failed:
                break  # the first round holds all draws that the lax rule needs

    def _round(self, planned: PlannedRound) -> None:
        repeated = {trial.seed for trial in planned.repeats}
        first: dict[int, KeptOutput] = {}
        for group in self._groups(planned.trials):
            outputs = self._try(group)
            first |= {
                t.seed: KeptOutput.of(o, self._fingerprint)
                for t, o in zip(group, outputs, strict=True)
                if t.seed in repeated
            }
            del outputs
        for group in self._groups(planned.repeats):
            if not self.tally.failed:
                self._repeat(group, [first[trial.seed] for trial in group])
        for sweep in planned.sweeps:
            if not self.tally.failed:
                self._sweep(sweep)

    def _groups(self, trials: Sequence[Trial]) -> Iterator[Sequence[Trial]]:
        """Yield groups of trials; the calls of one group are made in one block."""
        size = self.context.lent.count
        for start in range(0, len(trials), size):
            synchronize(self.context.outputs.device)
            self._sharing()
            yield trials[start : start + size]

    def _sweep(self, trials: Sequence[Trial]) -> None:
        """Call the candidate on the draws of a sweep and judge the outputs, until one fails."""
        for group in self._groups(trials):
            for trial in group:
                self.context.inputs.mend_guards(self.calls.input_slot(trial), next(self._poisons))
            block = self.calls.block(group)
            self.calls.clear_lent()
            for slot, output in enumerate(block):
                self._compare(group[slot], [output], POISONS[0])
            if self.tally.failed:
                return
        sweep_count = self.context.facts.sweep_counts[trials[0].kind]
        if len(trials) < sweep_count.needed:
            covered = (
                f"{len(trials)} of the {sweep_count.needed} draws that would cover every position"
            )
            self.tally.add_note(f"{trials[0].kind}: {covered}")

    def _retry_in_new_model(self, trial: Trial) -> None:
        """Repeat a draw that failed in a reused model in a new model.

        If it passes there, the fault is in the reuse, not in the inputs.
        """
        with self.tally.clock("worker"):
            self.session.load(self.context.weights, several=True)
        retried = replace(trial, when=When.FIRST)
        self.prefetcher.insert(retried, like=trial)
        self._try([retried])

    def _try(self, trials: Sequence[Trial]) -> list[list[Tensor]]:
        """Make both calls for each draw of a group, and judge the outputs.

        Returns the outputs of the single calls, one list per draw.
        """
        poisons = [next(self._poisons) for _ in trials]
        for trial, poison in zip(trials, poisons, strict=True):
            # Poison in the guards shows reads past the end of an input, even if a kernel multiplies
            # them by zero.
            self.context.inputs.mend_guards(self.calls.input_slot(trial), poison)
        # The first pass goes up from slot 0 and the second one down to it. So effects of one call
        # on the next one show. Each group starts at the address where the last group ended, with
        # other contents, so a candidate that recognizes inputs by their address fails.
        block = self.calls.block(trials, upward=True) if next(self._block_first) else None
        order = range(len(trials)) if block is None else reversed(range(len(trials)))
        calls = {
            slot: self.calls.single(
                trials[slot], slot, poisons[slot], block[slot] if block else None
            )
            for slot in order
        }
        single = [calls[slot] for slot in range(len(trials))]
        del calls
        block = block or self.calls.block(trials, single)
        self.calls.clear_lent()
        # Outputs are nearly always equal; judging and storing them once halves the work.
        distinct = [[a] if are_equal(a, b) else [a, b] for a, b in zip(single, block, strict=True)]
        del block
        for slot, trial in enumerate(trials):
            later = [outputs[-1] for outputs in distinct[slot + 1 :]]
            self._compare(trial, distinct[slot], poisons[slot], later=later)
        return single

    def _repeat(self, trials: Sequence[Trial], before: Sequence[KeptOutput]) -> None:
        """Repeat earlier draws, whose outputs were `before`.

        An output that equals the earlier one is not judged again.
        """
        for trial in trials:
            self.calls.input_slot(trial)
        block = self.calls.block(trials)
        self.calls.clear_lent()
        for slot, output in enumerate(block):
            if before[slot].equals(output):
                self.prefetcher.done(trials[slot])
            else:
                self._compare(trials[slot], [output], POISONS[0])

    def _compare(
        self,
        trial: Trial,
        distinct: Sequence[Sequence[Tensor]],
        poison: int,
        *,
        later: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        """Judge the outputs of one draw's calls.

        `distinct` has the output of the single call, then that of the block if it differs. `poison`
        filled the output memory before the single call. Raises Rejected if the output of the block
        is wrong and equals one of the `later` outputs of the block.
        """
        count = next(self.tally.recorded_counts, 0)
        # A constant answer is judged with the spread, so it is needed until the constant has
        # failed.
        spread = count > 0 or self.tally.constant_passes or self.context.needs_spread(trial.kind)
        result = self._judge(trial, distinct, count, spread=spread)
        if not spread and not all(finding.passed for finding in result.findings):
            result = self._judge(trial, distinct, count, spread=True)
        self.tally.perturbations.append(result.perturbations)
        defer = result.steep and not self._in_extra_draws and not self.tally.failed
        wrong = _wrong_in_block(result.findings)
        if wrong and any(are_equal(distinct[-1], answer) for answer in later):
            detail = "a later call changed an earlier output: each call must return new memory"
            raise Rejected(Reason.WRONG_VALUES, detail, self.session.output())
        if result.findings:
            with self.tally.clock("compare"):
                self._add_to_tally(trial, distinct, result.deferred() if defer else result, poison)
        self.prefetcher.done(trial)
        if defer:
            self._make_extra_draws(trial)

    def _make_extra_draws(self, trial: Trial) -> None:
        """Make EXTRA_DRAWS further draws of the trial's kind; all of them must pass.

        If roundoff changes an answer much, the spread of one draw is a poor measure, and one honest
        draw in a thousand fails. A candidate that is wrong for any other reason fails the next
        draws too.
        """
        self.tally.add_note(f"{trial.kind}: {DEFERRED}")
        self._in_extra_draws = True
        for _ in range(EXTRA_DRAWS):
            seed = self.seeds.draw()
            if trial.kind in SWEEPS:
                seed += trial.step - seed % MAX_SWEEP
            extra = replace(trial, seed=seed)
            self.prefetcher.insert(extra, like=trial)
            self._try([extra])
        self._in_extra_draws = False

    def _add_to_tally(
        self, trial: Trial, outputs: Sequence[Sequence[Tensor]], result: _Result, poison: int
    ) -> None:
        """Add the findings on one draw to the tally."""
        expected, findings = result.expected, result.findings
        if trial.kind in LENIENT and (difference := nonfinite_differences(outputs[0], expected)):
            self.tally.add_note(f"{trial.kind}: {difference}")
        unwritten = not findings[0].passed and holds_poison(outputs[0], expected.declared, poison)
        recorded = replace(trial, when=When.TIMED) if _wrong_in_block(findings) else trial
        self.tally.add(recorded, outputs, expected, findings, unwritten)
        if self.tally.constant_passes:
            if self.tally.constants is None:
                self.tally.constants = constants(expected)
            self.tally.constant_passes = self._constant_passes(
                self.tally.constants, expected, trial.kind
            )

    def _judge(
        self, trial: Trial, outputs: Sequence[Sequence[Tensor]], count: int, *, spread: bool
    ) -> _Result:
        """Request the oracle's answer to a draw, and judge `outputs` against it.

        The findings are empty if the answer must not reject a candidate (`AnswerInfo.is_decisive`).
        `count` is the number of perturbed runs, or 0 to let a time limit decide.
        """
        with self.tally.clock("oracle"):
            info, slot = self.prefetcher.answer(trial, spread=spread, count=count)
        expected = replace(self.context.expected(slot), certain=info.certain)
        if not info.is_decisive(trial.kind, trial.weights):
            return _Result(expected, [], info.perturbations)
        may_query = spread and not self.tally.failed
        sensitivity = self._sensitivity(trial, info.perturbations) if may_query else None
        with self.tally.clock("compare"):
            findings = [self.context.judged(x, expected, trial.kind, sensitivity) for x in outputs]
            return _Result(expected, findings, info.perturbations)

    def _sensitivity(self, trial: Trial, perturbations: int) -> SensitivityQuery:
        """Return a sensitivity query for a trial.

        Its number of pairs follows from `perturbations`, so that an audit can repeat it.
        """
        return self.prefetcher.sensitivity(trial, PAIRS_PER_PERTURBATION * perturbations)

    def _constant_passes(self, levels: Sequence[float], expected: Expected, kind: Inputs) -> bool:
        """Return True if outputs that repeat one number each (`levels`) pass on this draw.

        The numbers come from the first draw. A loss is one number too, but another in each draw.
        """
        pairs = zip(expected.declared, levels, strict=True)
        flat = [r.new_full((), c).expand(r.shape) for r, c in pairs]  # one number in memory
        return self.context.judged(flat, expected, kind, explain=False).passed


def _wrong_in_block(findings: Sequence[Finding]) -> bool:
    """Return True if the single call was right, but the call in the timed block was not."""
    return bool(findings) and findings[0].passed and not findings[-1].passed
