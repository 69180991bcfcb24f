"""Let an attempt compile its code in a first call, before the processes that are judged and timed
open.
"""

from __future__ import annotations

import time
from contextlib import suppress

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import Sharing
from cuagent.verify.batch import Batch
from cuagent.verify.compiled_code import compiles_when_called
from cuagent.verify.context import VerifyContext
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.processes import Processes
from cuagent.verify.report import FORESEEN
from cuagent.verify.timed_batches import TimedBatches
from cuagent.worker.giving_way import run_giving_way
from cuagent.worker.open_timeout import FIRST_CALL_S


def compile_ahead(
    processes: Processes,
    context: VerifyContext,
    batches: TimedBatches,
    attempt: Attempt,
    build: Build,
    sharing: Sharing,
) -> None:
    """Make the first call of an attempt and store the compiled files for its later processes.

    The device is held by `sharing`; while a timing waits for it, the attempt's process is stopped.
    Any failure shows in the verdict that follows. Does nothing if the attempt seems to compile
    nothing, and the second time.
    """
    compiled = processes.compiled
    if attempt in compiled or not compiles_when_called(attempt):
        return
    compiled.keep(attempt, None)
    if build.ok:
        with suppress(*FORESEEN):
            processes.mend()
            batch = batches.create(1)
            try:
                _call_once(processes, context, batch, attempt, build, sharing)
            finally:
                batches.discard(batch)


def _call_once(
    processes: Processes,
    context: VerifyContext,
    batch: Batch,
    attempt: Attempt,
    build: Build,
    sharing: Sharing,
) -> None:
    """Make one call of an attempt on inputs of `batch`, and store its compiled files."""
    seed, weights = Seeds().draw(), context.weights
    processes.oracle.load_weights(Weights.OWN, seed, weights)
    with processes.waiting(attempt, seed) as session:
        outputs = batch.outputs_of(CANDIDATE)

        def compile_all() -> None:
            session.import_model([library.path for library in build.libraries])
            session.load(weights)
            session.block(batch.lent, outputs, [(0, 0)], deadline_s=FIRST_CALL_S)

        begun = time.monotonic()
        breaks_s = run_giving_way(compile_all, session, sharing)
        first_call_s = time.monotonic() - begun - breaks_s
        processes.compiled.keep(attempt, session.folder, first_call_s)
