"""The referee's side of the fork server: start it, let it fork children, end them.

`fork_server_main.py` is the other side. Threads may share one `ForkServer`; their requests run one
after another. After `close` no process of the fork server remains.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuagent.library_folders import VARIABLE, library_folders
from cuagent.sandbox import Policy, Tier
from cuagent.task.settings import VARIABLES
from cuagent.worker import suspend
from cuagent.worker.channel import receive_message, send_message, socket_pair
from cuagent.worker.folder import remove
from cuagent.worker.forked import Serving, command, fork_process

# PATH and the rest are for compilers that run in a child (load_inline, triton, inductor).
_INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "LANG",
    "TZ",
    *VARIABLES,
)
_SPINS = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""Environment variables that limit how long idle OpenMP threads spin: loop iterations (about 50 us)
for GNU's library, milliseconds for LLVM's and Intel's.

By default they spin for over 5 ms after each parallel region and delay the process that should run.
On a busy machine with two cores, calls of 3 ms then took 75 ms in the median, and 18 ms with these
settings.
"""
_START_S = 120.0
"""Time limit in seconds for the fork server to start and import torch."""
_ANSWER_S = 30.0
"""Time limit in seconds for the fork server's answer to one request."""


class ForkServerError(Exception):
    """Error: the fork server did not start, or died. It is a fault of the machine, not of a
    candidate."""


@dataclass(frozen=True)
class Child:
    """The referee's handle of a process that the fork server forked."""

    pid: int
    channel: socket.socket
    output: int
    """Read end of the pipe to which the process prints."""
    pidfd: int | None
    """Descriptor that becomes readable when the process dies; None if the kernel has no
    pidfd_open."""

    @property
    def closed(self) -> bool:
        return self.channel.fileno() < 0

    @property
    def alive(self) -> bool:
        if self.closed:
            return False
        if self.pidfd is None:
            return Path(f"/proc/{self.pid}").exists()
        return not select.select([self.pidfd], [], [], 0)[0]

    def close(self) -> None:
        """Close the descriptors once. A second call does nothing, because the same descriptor
        numbers may belong to other files by then."""
        if self.closed:
            return
        self.channel.close()
        os.close(self.output)
        if self.pidfd is not None:
            os.close(self.pidfd)


class ForkServer:
    """A process that imports torch once in the background and then forks children quickly.

    The first `fork` waits until torch is imported. `modules` are imported too, and their
    `warm_up(folder)` is called, so that children need not do it. `packages` are installed modules
    that a task uses (`task.packages`); they are imported if they are safe to fork. With `compiler`,
    torch.compile is imported while no request waits, or before the first fork if `eager`. `on_gpu`:
    children use a GPU. `parent` is the folder in which `folder` is created.

    With `forked`, the server is a fork of the calling process, with all that it has imported,
    instead of a new Python. The calling process must then contain no secret and have neither
    threads nor CUDA.
    """

    def __init__(
        self,
        modules: Sequence[str] = (),
        packages: Sequence[str] = (),
        *,
        compiler: bool = False,
        on_gpu: bool = False,
        eager: bool = False,
        parent: Path | None = None,
        forked: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cuagent-", dir=parent))
        """Parent of the sessions' folders. The fork server removes it when it ends, even if the
        referee is killed."""
        # A worker under another user id must be able to pass through.
        self.folder.chmod(0o755)
        self._control, theirs = socket_pair()
        serving = Serving(
            str(self.folder), tuple(modules), tuple(packages), compiler, on_gpu, eager
        )
        self._process = fork_process(theirs, serving) if forked else _started(theirs, serving)
        theirs.close()
        self._lock = threading.RLock()
        self._ready = False
        self._threads = 0
        self.pid = self._process.pid
        self.living: set[int] = set()
        """Process ids of the children that `end` has not ended yet."""

    def fork(
        self,
        program: str,
        folder: Path,
        environment: dict[str, str],
        policy: Policy | None = None,
        tier: Tier = Tier.NONE,
    ) -> Child:
        """Fork a process that runs `program.serve(channel, folder)` in `folder`.

        With a `policy` the process enters the sandbox before that; without one it is trusted.
        Raises ForkServerError.
        """
        self._await_ready()
        ours, theirs = socket_pair()
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        message = {
            "do": "fork",
            "program": program,
            "folder": str(folder),
            "environment": inherited_environment() | environment,
            "policy": None if policy is None else policy.to_json(),
            "tier": tier,
        }
        try:
            with self._lock:  # else an unregistered child counts as a stray of another session
                pid = self._ask(message, (theirs.fileno(), write))["pid"]
                self.living.add(pid)
        except ForkServerError:
            ours.close()
            os.close(read)
            raise
        finally:
            theirs.close()
            os.close(write)
        return Child(pid, ours, read, _pidfd(pid))

    def end(self, child: Child) -> int | None:
        """Kill a child with its process group and orphans, and return its wait status.

        Returns None if the process does not die, or was ended before. Raises ForkServerError.
        """
        if child.closed:
            return None
        try:
            with self._lock:
                self.living.discard(child.pid)
                return self._ask({"do": "end", "pid": child.pid})["status"]
        finally:
            child.close()

    def suspend(self, child: Child) -> set[int]:
        """Stop the child and all its descendants; return the ids of those outside its process
        group.

        Raises SuspendError (see `suspend.stop`).
        """
        with self._lock:
            return suspend.stop(child.pid, self.pid, self.living)

    def process_tree(self, child: Child) -> set[int]:
        """Return the process ids of the child and all its descendants (see
        `suspend.process_tree`)."""
        with self._lock:
            return suspend.process_tree(child.pid, self.pid, self.living)

    @property
    def threads(self) -> int:
        """Number of threads that torch uses in each child; the calling process may use another
        number.

        Raises ForkServerError.
        """
        self._await_ready()
        return self._threads

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the fork server and all its children. Idempotent."""
        self._control.close()
        if not self._ready:  # it may still import torch, and has no children to end
            self._process.kill()
        try:
            self._process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        remove(self.folder)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        with self._lock:
            if not self._ready:
                self._threads = self._receive(_START_S)["threads"]
                self._ready = True

    def _ask(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
        with self._lock:
            try:
                send_message(self._control, message, descriptors)
            except OSError as error:
                raise ForkServerError(
                    f"the fork server died ({error.strerror}); start the command again"
                ) from error
            return self._receive(_ANSWER_S)

    def _receive(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        readable, _, _ = select.select([self._control], [], [], deadline - time.monotonic())
        received = receive_message(self._control) if readable else None
        if received is None:
            raise ForkServerError(
                f"the fork server did not answer: {self._last_words()}; start the command again "
                "when the machine is less busy"
            )
        return received[0]

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        lines = (self._process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"


def _started(theirs: socket.socket, serving: Serving) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(theirs.fileno(), serving),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=inherited_environment(),
        cwd="/",
        start_new_session=True,
    )


def inherited_environment() -> dict[str, str]:
    """Return the environment variables that a child may see. API keys and tokens are not among
    them."""
    passed_on = {name: os.environ[name] for name in (*_INHERITED, *_SPINS) if name in os.environ}
    return _SPINS | passed_on | {VARIABLE: os.pathsep.join(library_folders())}


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
