"""The processes of one task: the fork server, the oracle, and the sessions in which models run.

ForkServer and oracle outlive verdicts and timings, and are started anew where they died (`mend`); a
session is for one model. Not covered: what they are asked (`referee.py`, `measure/`).

Invariant: a candidate is told no more than an `Order`, which does not name the reference, and the
weights that it is lent are a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.sandbox import Tier, memory_bound
from cuagent.task import Device, Task
from cuagent.verify.context import layouts_of
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.client import Oracle
from cuagent.worker import Arena, ForkServer, ModelSpec, Session
from cuagent.worker.arms import CANDIDATE
from cuagent.worker.memory import device_use


class Processes:
    """Of `task`; `close` ends them. Raises TaskError, ForkServerError, OracleLost.

    `fork_server`: one that is shared and stays; else it starts its own. `weigh_as_timed` comes before
    the first session that is timed.
    """

    def __init__(self, task: Task, tier: Tier, fork_server: ForkServer | None = None) -> None:
        self.task = task
        self.tier = tier
        self.memory_bytes = memory_bound()
        self._ending = ExitStack()
        self.fork_server = fork_server or self._start()
        try:
            import torch  # noqa: F401  (while the fork server imports it too)

            self.oracle = Oracle(self.fork_server, task)
            self._ending.callback(lambda: self.oracle.close())
            self.about: dict[str, Any] = self.oracle.describe()
            state = layouts_of(self.about)["state"]
            self._timed_weights = Arena.create(state, 1, task.device.value)
            self._lent_weights = Arena.create(state, 1, task.device.value)
            self._timed_seed = Seeds().draw()
        except BaseException:
            self._ending.close()
            raise

    def _start(self) -> ForkServer:
        fork_server = ForkServer()
        self._ending.callback(fork_server.close)
        return fork_server

    def mend(self) -> None:
        """Start anew what died; the arenas are ours and still there."""
        if not self.fork_server.alive:
            self.fork_server.close()
            self.fork_server = self._start()
            self.oracle.lost = True
        if not self.oracle.alive:
            self.oracle.close()
            self.oracle = Oracle(self.fork_server, self.task)
            self.oracle.describe()
            self.load_timed_weights()

    def load_timed_weights(self) -> None:
        """The oracle has the weights that all timed arms share."""
        if self.oracle.weights != (Weights.OWN, self._timed_seed):
            self.oracle.load_weights(Weights.OWN, self._timed_seed, self._timed_weights)

    def waiting(
        self, attempt: Attempt, seed: int | None = None, cores: Collection[int] = ()
    ) -> Session:
        """A process of the attempt that waits for its libraries; to be timed where no `seed`."""
        return Session.begin(
            self.fork_server,
            self.model_spec(self._timed_seed if seed is None else seed),
            attempt,
            tier=self.tier,
            memory_bytes=self.memory_bytes,
            cores=cores,
        )

    def candidate(
        self,
        attempt: Attempt,
        build: Build,
        cores: Collection[int] = (),
        waiting: Session | None = None,
    ) -> Session:
        """A session of the attempt with the weights all timed arms share. Raises SessionEnded.

        `waiting` is one that was begun for it, if any.
        """
        session = waiting or self.waiting(attempt, cores=cores)
        session.import_model([library.path for library in build.libraries])
        # A copy: it could write to what the arms after it are to load.
        self._lent_weights.lay(self._timed_weights)
        session.load(self._lent_weights)
        return session

    def reference(
        self, mode: str, *, environment: dict[str, str] | None = None, cores: Collection[int] = ()
    ) -> Session:
        """A session of the reference: "eager", "compile", or a mode of torch.compile.

        `environment` is for caches of compiled graphs, which a candidate must never share.
        """
        model_spec = self.model_spec(self._timed_seed, mode)
        session = Session.open(self.fork_server, model_spec, environment=environment, cores=cores)
        session.load(self._timed_weights)
        return session

    def model_spec(self, seed: int, arm: str = CANDIDATE) -> ModelSpec:
        """What a process is told to run. A candidate is not told the reference."""
        return ModelSpec(
            arm=arm,
            device=self.task.device,
            precision=self.task.precision,
            inputs=self.about["inputs"],
            output=self.about["output"],
            state=tuple(self.about["state"]),
            init=self.about["init"],
            seed=seed,
            task=None if arm == CANDIDATE else self.task,
            device_bytes=self._device_bytes if arm == CANDIDATE else None,
        )

    @cached_property
    def _device_bytes(self) -> int | None:
        """Of the GPU's memory, for a candidate."""
        if self.task.device is not Device.CUDA:
            return None
        import torch

        return device_use.memory_limit(self.about["peak"], torch.cuda.mem_get_info()[1])

    def close(self) -> None:
        """End every process and give their weights' memory back. Idempotent."""
        self._ending.close()
        for arena in (self._timed_weights, self._lent_weights):
            arena.close()
