"""Profile one model in a child process and read the figures that the child wrote.

The child first builds the reference and starts the profiler, then waits for an attempt and its
libraries. So it can be started before an attempt exists. The attempt's code shares the child
(`child.py`), so the child's figures are feedback, never a verdict or a time of record.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuagent import kernels
from cuagent.arms import CANDIDATE, EAGER
from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.build.vectors import Loop, vectorised
from cuagent.device_lock import ALONE, Sharing
from cuagent.kernels.compiler import BUILD
from cuagent.measure.profile.child import REQUEST, RESULT
from cuagent.measure.profile.counters import Counters, CountersMissing, read, run
from cuagent.measure.profile.profile import Profile, ProfileError, costs_of
from cuagent.measure.roofline.ceilings import ceilings
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.measure.system_load import cpu_times, others_share
from cuagent.sandbox import Policy, SandboxError, Tier, probe_forked, wrap
from cuagent.sandbox.beneath import open_folder, read_beneath
from cuagent.task import Device, Task, TaskError
from cuagent.task.step import Step
from cuagent.verify.compiled_code import CompiledCode
from cuagent.verify.report import build_failure
from cuagent.worker import ForkServer, ForkServerError, ModelSpec
from cuagent.worker.channel import send_message
from cuagent.worker.fork_server import Child, inherited_environment
from cuagent.worker.giving_way import await_child

TIME_LIMIT_S = 120.0
"""Time limit of a profile in seconds, without hardware counters."""
COUNTERS_LIMIT_S = 60.0
"""Time limit in seconds for reading hardware counters."""
MAX_RESULT_BYTES = 8 << 20
"""Largest number of bytes read from the child's result."""
LIBRARIES = "libraries"
"""Subfolder of the child's folder for the attempt's compiled libraries."""
KERNELS = Path(kernels.__file__).parent
"""Folder of `cuagent/kernels`, the only part of cuagent that an attempt may read."""
PACKAGE = KERNELS.parent
Alone = Callable[[], AbstractContextManager[None]]
TOOLS = (Path("/opt/nvidia"), Path("/usr/local/cuda"))
"""Folders in which Nsight Compute may be installed."""
NCU_PROGRAM = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location(
    "cuagent", "{package}/__init__.py", submodule_search_locations=["{package}"]
)
sys.modules["cuagent"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["cuagent"])
from cuagent.library_folders import library_folders
sys.path += library_folders()
from cuagent.measure.profile.child import once
once(Path("{folder}"))
"""


def profile(
    task: Task,
    attempt: Attempt | None = None,
    build: Build | None = None,
    *,
    fork_server: ForkServer | None = None,
    cache: Path | None = None,
    counters: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> Profile:
    """Profile the reference, or a built attempt. Raises ProfileError or ForkServerError.

    A given `fork_server` saves the seconds of importing torch. `cache` is the cache folder of the
    device's ceilings. `counters` requests hardware counters too; they need a GPU and some ten
    seconds.
    """
    with (
        nullcontext(fork_server) if fork_server is not None else ForkServer() as warm,
        closing(ProfileSession(task, warm, with_candidate=attempt is not None)) as child,
    ):
        return child.finish(
            attempt, build, cache=cache, counters=counters, time_limit_s=time_limit_s
        )


class ProfileSession:
    """A child process that is prepared to profile the reference, or an attempt. Must be closed."""

    def __init__(self, task: Task, fork_server: ForkServer, *, with_candidate: bool) -> None:
        """Start the child, in a sandbox if an attempt will run in it. Raises ForkServerError."""
        self.task = task
        self._with_candidate = with_candidate
        self._fork_server = fork_server
        self.folder = Path(tempfile.mkdtemp(prefix="cuagent-profile-"))
        try:
            self._child = self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start(self) -> Child:
        folder = self.folder
        folder.chmod(0o755)
        (folder / LIBRARIES).mkdir()
        model_spec = _request(self.task, CANDIDATE if self._with_candidate else EAGER)
        (folder / REQUEST).write_text(json.dumps(model_spec.to_json()))
        self._environment = {
            "HOME": str(folder),
            "TMPDIR": str(folder),
            BUILD: str(folder / LIBRARIES),
            # By default torch shuts the GPU's profiler down after each trace; the second trace
            # needs it.
            "TEARDOWN_CUPTI": "0",
        }
        self._policy = None
        message: dict[str, Any] = {"policy": None}
        if self._with_candidate:
            self._policy = _policy(self.task, folder, self._environment)
            message = {"policy": self._policy.to_json(), "tier": probe_forked()}
        child = self._fork_server.fork("cuagent.measure.profile.child", folder, self._environment)
        send_message(child.channel, message)
        return child

    def await_opened(self, seconds: float = TIME_LIMIT_S, sharing: Sharing = ALONE) -> None:
        """Wait at most `seconds` until the child is prepared and idle, so that it does not disturb
        a timing.

        The device is held by `sharing`; the child is stopped while a timing waits for it.
        """
        # The child reports once, before the attempt's code is in it; nothing else is ever read.
        with suppress(TimeoutError):
            await_child(self._fork_server, self._child, sharing, seconds)

    def finish(
        self,
        attempt: Attempt | None,
        build: Build | None,
        *,
        cache: Path | None = None,
        counters: bool = False,
        time_limit_s: float = TIME_LIMIT_S,
        alone: Alone = nullcontext,
        compiled: CompiledCode | None = None,
    ) -> Profile:
        """Run the model in the child and return its profile. Raises ProfileError or
        ForkServerError.

        A session with_candidate needs `attempt` and its `build`; another needs None for both.
        `cache` is the cache folder of the ceilings. `counters` requests hardware counters. `alone`
        returns a context in which no other process uses the device; only the measurements run in
        it. `compiled` contains the files that attempts compiled at their first call.
        """
        assert self._with_candidate is (attempt is not None)
        if build is not None and not build.ok:
            raise ProfileError(str(build_failure(build)))
        if attempt is not None:
            attempt.write(self.folder)
            if compiled is not None and attempt in compiled:
                self.await_opened(time_limit_s)  # the sandbox sets the folder's owner first
                compiled.copy_to(attempt, self.folder)
        for library in build.libraries if build is not None else ():
            shutil.copy(library.path, self.folder / LIBRARIES)
        work = _work(self.task, self._fork_server)
        before = cpu_times()
        subject = self.task.name if attempt is None else f"attempt {attempt.digest[:8]}"
        device = self.task.device
        with alone():
            measured = self._figures(time_limit_s)
            busy = others_share(before, cpu_times())
            launches, missing = self._read_counters() if counters else ((), "")
            limits = ceilings(device, cache=cache)
        try:
            roof = Roofline(work[0], limits, work[1])
            found = _profile(subject, measured, roof, self.task, build)
            if found.roofline.beaten(found.seconds):
                with alone():
                    limits = ceilings(device, cache=cache, remeasure=True)
                found = replace(found, roofline=replace(found.roofline, ceilings=limits))
            found = replace(found, counters=launches, missing=missing, others=busy)
            return replace(found, loops=_loops(attempt, build))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # The attempt's code runs in the child, so it may have written anything.
            raise ProfileError(f"the profile cannot be read: {error!r}") from error

    def _figures(self, seconds: float) -> Any:
        """Let the child measure for at most `seconds`, and return the JSON value that it writes."""
        channel = self._child.channel
        self.await_opened(seconds)
        with suppress(OSError):  # if the child has ended, its file has the reason
            channel.recv(1, socket.MSG_DONTWAIT)
            send_message(channel, {"go": True})
        # The channel becomes readable again when the child has ended.
        ended, _, _ = select.select([channel], [], [], seconds)
        self._fork_server.end(self._child)
        if not ended:
            raise ProfileError(
                f"no profile within {seconds:.0f} s; give smaller inputs (--inputs), or try again "
                "when the machine is quiet"
            )
        measured = self._result()
        if isinstance(measured, dict) and "error" in measured:
            raise ProfileError(str(measured["error"]))
        return measured

    def _result(self) -> Any:
        """Return the JSON value in the child's result file.

        The attempt's code may have put a link or a pipe in its place; then ProfileError is raised.
        """
        root = open_folder(self.folder)
        try:
            return json.loads(read_beneath(root, RESULT, MAX_RESULT_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise ProfileError(f"the process ended without a profile ({error})") from error
        finally:
            os.close(root)

    def _read_counters(self) -> tuple[tuple[Counters, ...], str]:
        """Return the hardware counters of one call, and the reason if there are none, else ""."""
        policy = self._policy

        def in_sandbox(argv: list[str]) -> list[str]:
            if policy is None or probe_forked() is Tier.NONE:
                return argv
            tools = (Path(argv[0]).resolve().parent, *filter(Path.exists, TOOLS))
            # ncu and the code it injects communicate through a socket and start each other.
            read = (*policy.read, PACKAGE, *tools)
            wider = replace(policy, read=read, network=True, children=True)
            return wrap(argv, replace(wider, fds=(0, 1, 2)), Tier.LANDLOCK)

        program = NCU_PROGRAM.format(package=PACKAGE, folder=self.folder)
        argv = [sys.executable, "-I", "-B", "-c", program]
        environment = inherited_environment() | self._environment
        try:
            text = run(argv, environment, self.folder, COUNTERS_LIMIT_S, in_sandbox)
        except (CountersMissing, SandboxError) as why:
            return (), str(why)
        return tuple(read(text)), ""

    @property
    def alive(self) -> bool:
        """Return True if the child still runs, so that `finish` can use it."""
        return self._child.alive

    def close(self) -> None:
        """End the child and remove its folder. A second call does nothing."""
        with suppress(ForkServerError):  # then the child has ended with its parent
            self._fork_server.end(self._child)
        shutil.rmtree(self.folder, ignore_errors=True)


def _request(task: Task, arm: str) -> ModelSpec:
    """Return the model spec for the child. Inputs and weights are empty in it: the child has the
    task."""
    step = Step.of(task)
    arguments = 0 if step is None else step.arguments
    return ModelSpec(arm, task.device, task.precision, {}, {}, (), {}, 0, task, step=arguments)


def _policy(task: Task, folder: Path, environment: dict[str, str]) -> Policy:
    return Policy(
        read=(task.path.parent, KERNELS),
        write=(folder,),
        gpu=task.device is Device.CUDA,
        fds=(0, 1, 2, 3),
        environment=tuple(environment.items()),
    )


def _loops(attempt: Attempt | None, build: Build | None) -> tuple[Loop, ...]:
    """Return the loops of an attempt's CPU sources, and whether the compiler vectorised them."""
    if attempt is None or build is None:
        return ()
    return tuple(loop for library in build.libraries for loop in vectorised(attempt, library))


def _work(task: Task, fork_server: ForkServer) -> tuple[Work, str]:
    """Return the work of a call of the reference, and the precision of its matrix rate (such as
    "tf32")."""
    try:
        return count(task, fork_server)
    except TaskError as error:
        raise ProfileError(str(error)) from error


def _profile(
    subject: str, measured: dict[str, Any], roof: Roofline, task: Task, build: Build | None
) -> Profile:
    own = Work.from_json(measured["own_work"]) if measured["own_work"] else roof.work
    libraries = build.libraries if build else ()
    on_cuda = task.device is Device.CUDA
    return Profile(
        subject=subject,
        seconds=float(measured["seconds"]),
        operators=costs_of(measured["operators"], own.operators, on_cuda=on_cuda),
        kernels=costs_of(measured["kernels"], {}, on_cuda=on_cuda),
        roofline=roof,
        own=own,
        busy=float(measured["busy"]) if on_cuda else None,
        busy_threads=float(measured["busy_threads"]),
        threads=int(measured["threads"]),
        memory=measured["memory"],
        resources=tuple(r for library in libraries for r in library.resources),
    )
