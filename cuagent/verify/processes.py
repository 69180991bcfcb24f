"""The processes of one task: fork server, oracle, and the sessions in which models run.

Fork server and oracle outlive verdicts and timings, and `mend` replaces them if they died. A
session runs one model. Not covered: the requests that are sent to these processes (`referee.py`,
`measure/`).

Invariant: a candidate's process receives only a `ModelSpec`, which does not name the reference, and
a copy of the weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.sandbox import Tier, memory_bound
from cuagent.task import Device, Task
from cuagent.task.packages import installed_imports
from cuagent.task.settings import arm_settings, candidate_settings
from cuagent.task.step import Step
from cuagent.verify.compiled_code import CompiledCode
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle.client import Oracle
from cuagent.worker import Arena, ForkServer, ModelSpec, Session
from cuagent.worker.arms import COMPILERS
from cuagent.worker.memory import device_use
from cuagent.worker.memory.arena import start_device
from cuagent.worker.open_timeout import OPEN_S
from cuagent.worker.user_caches import INDUCTOR, user_caches
from cuagent.worker.vector_units import VARIABLE, all_passed


class Processes:
    """The processes of `task`; `close` ends them. Raises TaskError, ForkServerError, OracleLost.

    `isolate` prepares this process and returns the tier of candidates, before any seed is drawn.
    If a `fork_server` is passed, `close` leaves it running. Otherwise one is started; with
    `compiler` it imports torch.compile while it is idle. `lock` is the path of the device's lock.
    While the oracle describes the task, `give_way` is called to release that lock for a waiting
    timing. Call `load_timed_weights` before the first timed session.
    """

    def __init__(
        self,
        task: Task,
        isolate: Callable[[], Tier],
        fork_server: ForkServer | None = None,
        budget: int | None = None,
        kernels_only: bool = False,
        compiler: bool = True,
        lock: Path | None = None,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        self.task = task
        self._lock = lock
        step = Step.of(task)
        self._arguments = 0 if step is None else step.arguments
        self.kernels_only = kernels_only
        self._compiler = compiler
        self._budget = budget
        self.room: MemoryPlan | None = None
        """Plan of the task's memory, which determines a candidate's memory limit; None before it is
        made.
        """
        self.memory_bytes = memory_bound()
        self.compiled = CompiledCode()
        """Files that attempts compiled at their first call, for their later processes."""
        self._ending = ExitStack()
        self.fork_server = fork_server or self._start()
        try:
            self.tier = isolate()  # while the fork server imports torch
            import torch  # noqa: F401  (while the fork server imports it too)

            self.oracle = Oracle(self.fork_server, task, budget, lock)
            self._ending.callback(lambda: self.oracle.close())
            if task.device is Device.CUDA:
                # The referee's own context, while the oracle creates its one.
                threading.Thread(
                    target=start_device, args=(task.device.value,), daemon=True
                ).start()
            self.facts = self.oracle.describe(give_way)
            state = self.facts.layouts.state
            self._timed_weights = Arena.create(state, 1, task.device.value)
            self._lent_weights = Arena.create(state, 1, task.device.value)
            self._timed_seed = Seeds().draw()
        except BaseException:
            self._ending.close()
            raise

    def _start(self) -> ForkServer:
        fork_server = ForkServer(
            packages=installed_imports(self.task.source),
            compiler=self._compiler,
            on_gpu=self.task.device is Device.CUDA,
        )
        self._ending.callback(fork_server.close)
        return fork_server

    def mend(self) -> None:
        """Restart the fork server and the oracle if they died; the arenas are not lost."""
        if not self.fork_server.alive:
            self.fork_server.close()
            self.fork_server = self._start()
            self.oracle.close()
        if not self.oracle.alive:
            self.oracle.close()
            self.oracle = Oracle(self.fork_server, self.task, self._budget, self._lock)
            self.oracle.describe()
            self.load_timed_weights()

    def load_timed_weights(self) -> None:
        """Let the oracle write the weights that all arms of a timing use."""
        if self.oracle.weights != (Weights.OWN, self._timed_seed):
            self.oracle.load_weights(Weights.OWN, self._timed_seed, self._timed_weights)

    def waiting(
        self, attempt: Attempt, seed: int | None = None, cores: Collection[int] = ()
    ) -> Session:
        """Fork a process for the attempt before its libraries are compiled.

        `seed` is the seed of the weights; by default that of the timed weights. `cores` are the CPU
        cores that the process may use.
        """
        return Session.begin(
            self.fork_server,
            self.model_spec(self._timed_seed if seed is None else seed),
            attempt,
            tier=self.tier,
            environment=self._environment(attempt),
            memory_bytes=self.memory_bytes,
            cores=cores,
            prepare=lambda folder: self.compiled.copy_to(attempt, folder),
        )

    def _environment(self, attempt: Attempt) -> dict[str, str]:
        """Return the environment variables of a candidate's process.

        A process that gets compiled files starts no compiler workers. Otherwise torch.compile would
        start one Python process per core, each of which imports torch for seconds.
        """
        found = {VARIABLE: "1"} if self._skips_vector_tests() else {}
        return found | ({COMPILERS: "1"} if self.compiled.has_files(attempt) else {})

    def _skips_vector_tests(self) -> bool:
        return self.task.device is Device.CPU and all_passed(user_caches() / INDUCTOR)

    def finish_candidate(self, session: Session, build: Build) -> None:
        """Import the attempt's module in a session from `waiting`, and load the weights that all
        arms of a timing use. Raises SessionEnded.
        """
        session.import_model([library.path for library in build.libraries])
        # A copy, because a candidate could change the weights that the next arms load.
        self._lent_weights.copy_slot(self._timed_weights)
        session.load(self._lent_weights)

    def reference(
        self, mode: str, *, environment: dict[str, str] | None = None, cores: Collection[int] = ()
    ) -> Session:
        """Return a session of the reference; `mode` is "eager", "compile" or a mode of
        torch.compile.

        `environment` sets the caches of compiled graphs, which a candidate must never share.
        """
        session = self.begin_reference(mode, environment=environment, cores=cores)
        self.finish_reference(session)
        return session

    def begin_reference(
        self, mode: str, *, environment: dict[str, str] | None = None, cores: Collection[int] = ()
    ) -> Session:
        """Fork a process for the reference without its model; `finish_reference` loads the
        model.
        """
        model_spec = self.model_spec(self._timed_seed, mode)
        return Session.begin(self.fork_server, model_spec, environment=environment, cores=cores)

    def finish_reference(self, session: Session, deadline_s: float = OPEN_S) -> None:
        """Import the task's module in a session from `begin_reference`, and load its weights.

        Raises SessionEnded.
        """
        session.import_model()
        session.load(self._timed_weights, deadline_s=deadline_s)

    def model_spec(self, seed: int, arm: str = CANDIDATE) -> ModelSpec:
        """Return the spec of the model that the process of `arm` runs; a candidate's lacks the
        task.
        """
        own, precision = self.facts.settings, self.task.precision
        device_bytes, kept_bytes = self._device_limits() if arm == CANDIDATE else (None, None)
        return ModelSpec(
            arm=arm,
            device=self.task.device,
            precision=precision,
            inputs=self.facts.inputs,
            output=self.facts.output,
            state=self.facts.state,
            init=self.facts.init,
            seed=seed,
            task=None if arm == CANDIDATE else self.task,
            device_bytes=device_bytes,
            kept_bytes=kept_bytes,
            settings=candidate_settings(own, precision)
            if arm == CANDIDATE
            else arm_settings(own, precision, arm.split("+")[1:]),
            step=self._arguments if arm == CANDIDATE else 0,
            kernels_only=self.kernels_only and arm == CANDIDATE,
        )

    def _device_limits(self) -> tuple[int | None, int | None]:
        """Return the bytes of GPU memory that a candidate may use (during a call, between calls).

        (None, None) on a CPU.
        """
        if self.task.device is not Device.CUDA or self.room is None:
            return None, None
        free, peak = self.room.available(self.task.device.value), self.facts.peak
        during, after = self.room.beside_a_call, self.room.beside_a_candidate
        return device_use.memory_limit(peak, free, during), device_use.memory_limit(
            peak, free, after
        )

    def close(self) -> None:
        """End all processes and release the memory of the weights. Idempotent."""
        self._ending.close()
        for arena in (self._timed_weights, self._lent_weights):
            arena.close()
