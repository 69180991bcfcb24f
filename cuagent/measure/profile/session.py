"""How a profile comes about: a child that runs one model under the profiler, and what it wrote.

The child opens the task and the profiler first, then waits for an attempt and its libraries, so
that it can be begun before there is one. The attempt's code shares it (`profiled.py`), so its
figures are feedback, never a verdict or a time of record.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import sys
import tempfile
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuagent import kernels
from cuagent.attempt import Attempt
from cuagent.build.result import Build
from cuagent.build.vectors import Loop, vectorised
from cuagent.kernels.compiler import BUILD
from cuagent.measure.profile.child import ORDER, RESULT
from cuagent.measure.profile.counters import Counters, CountersMissing, read, run
from cuagent.measure.profile.profile import Profile, ProfileError, costs_of
from cuagent.measure.roofline.ceilings import ceilings
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.measure.system_load import cpu_times, others_share
from cuagent.sandbox import Policy, SandboxError, Tier, probe_forked, wrap
from cuagent.task import Device, Task, TaskError
from cuagent.verify.report import build_failure
from cuagent.worker import ForkServer, ForkServerError, ModelSpec
from cuagent.worker.arms import CANDIDATE, EAGER
from cuagent.worker.channel import send_message
from cuagent.worker.fork_server import Child, inherited_environment

DEADLINE_S = 120.0
COUNTERS_S = 60.0
LARGEST_RESULT = 8 << 20
"""Bytes; what the child writes is read no further."""
LIBRARIES = "libraries"
"""Where in its folder the child looks for what was compiled."""
KERNELS = Path(kernels.__file__).parent
"""The loader, which an attempt imports; of cuagent it may read no more."""
PACKAGE = KERNELS.parent
TOOLS = (Path("/opt/nvidia"), Path("/usr/local/cuda"))
"""Where Nsight Compute may lie."""
ONCE = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
# By its file: the folder around the package may not be read.
spec = spec_from_file_location(
    "cuagent", "{package}/__init__.py", submodule_search_locations=["{package}"]
)
sys.modules["cuagent"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["cuagent"])
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
    deadline_s: float = DEADLINE_S,
) -> Profile:
    """Profile the reference, or an attempt that was built. Raises ProfileError, ForkServerError.

    `fork_server` saves the seconds that importing torch takes; `cache` is where ceilings are kept;
    `counters` asks for hardware counters too, which takes some ten seconds and a GPU.
    """
    with (
        nullcontext(fork_server) if fork_server is not None else ForkServer() as warm,
        closing(Profiling(task, warm, attempted=attempt is not None)) as child,
    ):
        return child.finish(attempt, build, cache=cache, counters=counters, deadline_s=deadline_s)


class Profiling:
    """A profile that was begun, of the reference or of an attempt that is to come. Close it."""

    def __init__(self, task: Task, fork_server: ForkServer, *, attempted: bool) -> None:
        """Start the child, in a sandbox where it is for an attempt. Raises ForkServerError."""
        self.task = task
        self._attempted = attempted
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
        model_spec = _order(self.task, CANDIDATE if self._attempted else EAGER)
        (folder / ORDER).write_text(json.dumps(model_spec.to_json()))
        self._environment = {
            "HOME": str(folder),
            "TMPDIR": str(folder),
            BUILD: str(folder / LIBRARIES),
            # torch takes the profiler of the GPU down after each trace; the second one wants it up.
            "TEARDOWN_CUPTI": "0",
        }
        self._policy = None
        message: dict[str, Any] = {"policy": None}
        if self._attempted:
            self._policy = _policy(self.task, folder, self._environment)
            message = {"policy": self._policy.to_json(), "tier": probe_forked()}
        child = self._fork_server.fork("cuagent.measure.profile.child", folder, self._environment)
        send_message(child.channel, message)
        return child

    def await_opened(self, seconds: float = DEADLINE_S) -> None:
        """Until the child rests: whoever times something meanwhile wants the machine quiet."""
        # It says one thing, before the attempt's code is in it; nothing else is ever read.
        select.select([self._child.channel], [], [], seconds)

    def finish(
        self,
        attempt: Attempt | None,
        build: Build | None,
        *,
        cache: Path | None = None,
        counters: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> Profile:
        """Let it run, an attempt with the libraries of `build`. Raises ProfileError, ForkServerError.

        One that was begun for an attempt wants one, and the other way round.
        """
        assert self._attempted is (attempt is not None)
        if build is not None and not build.ok:
            raise ProfileError(str(build_failure(build)))
        if attempt is not None:
            attempt.write(self.folder)
        for library in build.libraries if build is not None else ():
            shutil.copy(library.path, self.folder / LIBRARIES)
        asked = _work(self.task, self._fork_server)
        before = cpu_times()
        figures = self._figures(deadline_s)
        busy = others_share(before, cpu_times())
        launches, missing = self._counted() if counters else ((), "")
        subject = self.task.name if attempt is None else f"attempt {attempt.digest[:8]}"
        device = self.task.device
        try:
            roof = Roofline(asked[0], ceilings(device, cache=cache), asked[1])
            found = _profile(subject, figures, roof, self.task, build)
            if found.roofline.beaten(found.seconds):
                limits = ceilings(device, cache=cache, doubted=True)
                found = replace(found, roofline=replace(found.roofline, ceilings=limits))
            found = replace(found, counters=launches, missing=missing, others=busy)
            return replace(found, loops=_loops(attempt, build))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # The child's process is the attempt's too: it may have written anything.
            raise ProfileError(f"the profile cannot be read: {error!r}") from error

    def _figures(self, seconds: float) -> Any:
        """What the child writes once it is told to go on."""
        channel = self._child.channel
        self.await_opened(seconds)
        with suppress(OSError):  # where it has ended, its file says why
            channel.recv(1, socket.MSG_DONTWAIT)
            send_message(channel, {"go": True})
        # It becomes readable again when the child has ended.
        ended, _, _ = select.select([channel], [], [], seconds)
        self._fork_server.end(self._child)
        if not ended:
            raise ProfileError(f"no profile within {seconds:.0f} s")
        try:
            with (self.folder / RESULT).open("rb") as file:
                text = file.read(LARGEST_RESULT)
            figures = json.loads(text)
        except (OSError, ValueError) as error:
            raise ProfileError(f"the process ended without a profile ({error})") from error
        if "error" in figures:
            raise ProfileError(str(figures["error"]))
        return figures

    def _counted(self) -> tuple[tuple[Counters, ...], str]:
        """What ncu reads of one call, and why it reads nothing."""
        policy = self._policy

        def confined(argv: list[str]) -> list[str]:
            if policy is None or probe_forked() is Tier.NONE:
                return argv
            tools = (Path(argv[0]).resolve().parent, *filter(Path.exists, TOOLS))
            # ncu and what it injects talk through a socket, and start each other.
            read = (*policy.read, PACKAGE, *tools)
            wider = replace(policy, read=read, network=True, children=True)
            return wrap(argv, replace(wider, fds=(0, 1, 2)), Tier.LANDLOCK)

        program = ONCE.format(package=PACKAGE, folder=self.folder)
        argv = [sys.executable, "-I", "-B", "-c", program]
        environment = inherited_environment() | self._environment
        try:
            text = run(argv, environment, self.folder, COUNTERS_S, confined)
        except (CountersMissing, SandboxError) as why:
            return (), str(why)
        return tuple(read(text)), ""

    @property
    def alive(self) -> bool:
        """Whether it may still be finished."""
        return self._child.alive

    def close(self) -> None:
        """End the child and remove its folder. Idempotent."""
        with suppress(ForkServerError):  # then it is gone with its parent
            self._fork_server.end(self._child)
        shutil.rmtree(self.folder, ignore_errors=True)


def _order(task: Task, arm: str) -> ModelSpec:
    """Specs stay empty: the child opens the task and finds them out itself."""
    return ModelSpec(arm, task.device, task.precision, {}, {}, (), {}, 0, task)


def _policy(task: Task, folder: Path, environment: dict[str, str]) -> Policy:
    return Policy(
        read=(task.path.parent, KERNELS),
        write=(folder,),
        gpu=task.device is Device.CUDA,
        fds=(0, 1, 2, 3),
        environment=tuple(environment.items()),
    )


def _loops(attempt: Attempt | None, build: Build | None) -> tuple[Loop, ...]:
    """What the compiler vectorised of an attempt's sources for the CPU."""
    if attempt is None or build is None:
        return ()
    return tuple(loop for library in build.libraries for loop in vectorised(attempt, library))


def _work(task: Task, fork_server: ForkServer) -> tuple[Work, str]:
    """What a call of the reference asks for, and the matrix rate that applies."""
    try:
        return count(task, fork_server)
    except TaskError as error:
        raise ProfileError(str(error)) from error


def _profile(
    subject: str, figures: dict[str, Any], roof: Roofline, task: Task, build: Build | None
) -> Profile:
    own = Work.from_json(figures["own_work"]) if figures["own_work"] else roof.work
    libraries = build.libraries if build else ()
    on_cuda = task.device is Device.CUDA
    return Profile(
        subject=subject,
        seconds=float(figures["seconds"]),
        operators=costs_of(figures["operators"], own.operators, on_cuda=on_cuda),
        kernels=costs_of(figures["kernels"], {}, on_cuda=on_cuda),
        roofline=roof,
        own=own,
        busy=float(figures["busy"]) if on_cuda else None,
        busy_threads=float(figures["busy_threads"]),
        threads=int(figures["threads"]),
        memory=figures["memory"],
        resources=tuple(r for library in libraries for r in library.resources),
    )
