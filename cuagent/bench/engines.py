"""Run each benchmark problem in its own process: on this machine, or on a Ray cluster.

`Engine.run` runs an order, reports progress, and returns the record. It raises EngineLost if the
process ended without a record.
Not covered: the order of the problems (`scheduler.py`).
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

from cuagent.bench.child import INTERRUPTED, WARM
from cuagent.bench.order import WAITING_FOR_MEMORY, Order
from cuagent.bench.problems import BenchError
from cuagent.bench.results import Record
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.folder import remove
from cuagent.worker.fork_server import Child

Report = Callable[[dict[str, Any]], None]
ENDING_AFTER_S = 300.0
"""Seconds after its time limit in which a problem may end the step in progress and judge its best
attempt for the record."""
GRACE_S = 10.0
"""Seconds between the interrupt of a process and its kill, for ending its child processes."""
ENDING_S = 5.0
"""Longest wait in seconds for a process to exit after it closed its channel."""


class EngineLost(Exception):
    """Error: a problem's process ended without a record. The message is one line with the
    reason."""


class Cancelled(Exception):
    """Error: the problem was cancelled, so it has no record."""


class Engine(Protocol):
    """Protocol of objects that run benchmark problems. Several threads may call `run` at the same
    time."""

    def run(self, order: Order, report: Report) -> Record:
        """Run one problem and return its record; pass progress messages to `report`. Raises
        EngineLost and Cancelled."""
        ...

    def cancel(self) -> None:
        """End all running problems; later calls of `run` raise Cancelled."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def limit_s(order: Order) -> float:
    """Return the time in seconds after which a problem's process is killed, without the time in
    which it waits for GPU memory.

    No step of the optimization begins after `max_time_s`; the best attempt is still judged then.
    """
    return order.settings.max_time_s + ENDING_AFTER_S


class TimeLimit:
    """Kills a problem's process after `limit_s`, unless it waits for GPU memory meanwhile.

    A problem does nothing before it has its memory, so its time starts again then.
    """

    def __init__(self, order: Order, kill: Callable[[], None]) -> None:
        self._order, self._kill = order, kill
        self.over = False
        """True if the process was killed."""
        self._timer: threading.Timer | None = None
        self._changing = threading.Lock()
        self.start()

    def observe(self, message: dict[str, Any]) -> None:
        """Stop or restart the clock after a progress message of the process."""
        if message.get("phase") == WAITING_FOR_MEMORY:
            self.stop()
        elif self._timer is None:
            self.start()

    def start(self) -> None:
        """Start the clock at zero."""
        self._timer = threading.Timer(limit_s(self._order), self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Stop the clock; the process is not killed while it stands."""
        with self._changing:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        with self._changing:
            if threading.current_thread() is self._timer:
                self.over = True
                self._kill()


class LocalEngine:
    """Runs each problem in a process of this machine, forked from a process that has imported
    torch.

    The first problem, or a `with` block, starts the fork server; `close` ends it.
    """

    def __init__(self, logs: Path, *, on_gpu: bool = False) -> None:
        self.logs = logs.resolve()
        """Folder with one log file for the output of each process."""
        self._on_gpu = on_gpu
        self._changed = threading.Condition()
        self._children: set[Child] = set()
        self._server: ForkServer | None = None
        self._cancelled = False

    def run(self, order: Order, report: Report) -> Record:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{order.problem.replace('/', '_').replace(' ', '_')}.log"
        log.unlink(missing_ok=True)  # it may be a link to a file of the user
        log.open("xb").close()
        server, folder, child = self._start()
        limit = TimeLimit(order, lambda: _signal(child, signal.SIGKILL))

        def observe(message: dict[str, Any]) -> None:
            limit.observe(message)
            report(message)

        try:
            record = _record_of(child, order, log, observe)
        finally:
            limit.stop()
            code = self._end(server, child, folder)
        if record is not None:
            return record
        if self._cancelled:
            raise Cancelled
        if limit.over:
            raise EngineLost(f"not done in {limit_s(order):.0f} s; --max-time gives it longer")
        raise EngineLost(_why(code, log))

    def _start(self) -> tuple[ForkServer, Path, Child]:
        """Fork the process of a problem. Raises Cancelled and EngineLost."""
        try:
            server = self._ready_server()
            folder = Path(tempfile.mkdtemp(prefix="problem-", dir=server.folder))
            folder.chmod(0o755)  # a worker under another user id must be able to pass through
            child = server.fork("cuagent.bench.child", folder, {})
        except (ForkServerError, OSError) as error:
            raise EngineLost(f"{type(error).__name__}: {error}") from error
        with self._changed:
            self._children.add(child)
            if self._cancelled:  # `cancel` did not know this child yet
                _signal(child, signal.SIGKILL)
        return server, folder, child

    def _ready_server(self) -> ForkServer:
        """Return the fork server; start it if there is none or it has died."""
        with self._changed:
            if self._cancelled:
                raise Cancelled
            if self._server is not None and not self._server.alive:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = ForkServer(WARM, compiler=True, on_gpu=self._on_gpu, eager=True)
            return self._server

    def _end(self, server: ForkServer, child: Child, folder: Path) -> int | None:
        """End a process and its children. Return its exit code; None if that is unknown."""
        if child.pidfd is not None:  # its channel closes a moment before it ends
            select.select([child.pidfd], [], [], ENDING_S)
        with self._changed:
            self._children.discard(child)
            self._changed.notify_all()
        try:
            status = server.end(child)
        except ForkServerError:
            status = None
        remove(folder)
        return None if status is None else os.waitstatus_to_exitcode(status)

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            for child in self._children:
                _signal(child, signal.SIGTERM)
            self._changed.wait_for(lambda: not self._children, GRACE_S)
            for child in self._children:
                _signal(child, signal.SIGKILL)

    def close(self) -> None:
        with self._changed:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Self:
        self._ready_server()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record_of(child: Child, order: Order, log: Path, report: Report) -> Record | None:
    """Send the order to the child, pass its progress to `report`, and return its record.

    Returns None if the child closes its channel without a record.
    """
    record: Record | None = None
    here = {"environment": dict(os.environ), "cwd": str(Path.cwd())}
    with suppress(OSError):
        send_message(child.channel, {"order": order.to_json(), "log": str(log)})
        while (received := receive_message(child.channel)) is not None:
            message = received[0]
            if "forked" in message:
                send_message(child.channel, here)
            elif "record" in message:
                record = message["record"]
            else:
                report(message)
    return record


def _signal(child: Child, number: int) -> None:
    """Send a signal to a child process; do nothing if it has already ended."""
    with suppress(ProcessLookupError):
        os.kill(child.pid, number)


def _why(code: int | None, log: Path) -> str:
    """Return the reason, as text, why a process ended without a record, with the last line of its
    log.

    `code`: exit code, negative for a signal; None if unknown.
    """
    if code == INTERRUPTED:
        return "its process was interrupted"
    if code is None:
        how = "an unknown exit code"
    else:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code == -signal.SIGKILL:
        how += " (if the machine ran out of memory, use fewer --jobs)"
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"its process died with {how}" + (f": {lines[-1][:200]}" if lines else "")


class RayEngine:
    """Runs each problem in a process on some machine of a Ray cluster (`cuagent[ray]`).

    All machines must see the problems' files and the output folder at the same paths. Without
    RAY_ADDRESS a cluster starts on this machine. Raises BenchError if Ray is not installed.
    """

    def __init__(self, logs: Path, jobs_per_gpu: int, on_gpu: bool, cpus: int) -> None:
        if find_spec("ray") is None:
            raise BenchError("--engine ray needs ray; pip install 'cuagent[ray]'")
        import ray

        if not ray.is_initialized():
            ray.init(os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        self._ray = ray
        self._cpus, self._gpus = cpus, 1 / jobs_per_gpu if on_gpu else 0
        self._remote = ray.remote(_in_ray).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0
        )
        self._logs = str(logs.resolve())
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._cancelled = False

    @property
    def slots(self) -> int:
        """Number of problems that the cluster can run at the same time."""
        resources = self._ray.cluster_resources()
        places = resources.get("CPU", 1) / self._cpus
        if self._gpus:
            places = min(places, resources.get("GPU", 0) / self._gpus)
        return max(1, int(places))

    def run(self, order: Order, report: Report) -> Record:
        from ray.exceptions import RayError

        with self._lock:
            if self._cancelled:
                raise Cancelled
            asked = self._remote.remote(order.to_json(), self._logs)
            self._running.add(asked)
        report({"phase": "on the cluster"})
        try:
            answer = self._ray.get(asked)
        except RayError as error:
            if self._cancelled:
                raise Cancelled from error
            raise EngineLost(f"Ray: {str(error).splitlines()[0]}") from error
        finally:
            with self._lock:
                self._running.discard(asked)
        if "lost" in answer:
            raise EngineLost(answer["lost"])
        record: Record = answer["record"]
        return record

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            running = list(self._running)
        for asked in running:
            self._ray.cancel(asked, force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster running, because it may belong to the user."""


def _in_ray(order: dict[str, Any], logs: str) -> dict[str, Any]:
    """Run a problem on the machine of this Ray worker, on the GPU that Ray has chosen.

    Returns {"record": record} or {"lost": reason}.
    """
    asked = Order.from_json(order)
    try:
        with LocalEngine(Path(logs), on_gpu=asked.settings.device == "cuda") as engine:
            return {"record": engine.run(asked, lambda _: None)}
    except EngineLost as error:
        return {"lost": str(error)}
