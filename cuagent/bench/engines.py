"""Run the process of one problem: on this machine, or on a Ray cluster.

An engine is a function that takes an order, reports progress, and returns the record. It raises
EngineLost if the process gave none. Not covered: which problem runs when (`scheduler.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from cuagent.bench.child import INTERRUPTED
from cuagent.bench.order import Order
from cuagent.bench.problems import BenchError
from cuagent.bench.results import Record

Report = Callable[[dict[str, Any]], None]
CERTIFY_S = 300.0
"""Seconds that certificates and opening may take, in addition to a problem's time."""
GRACE_S = 10.0
"""Seconds that an interrupted process has to end its own processes."""


class EngineLost(Exception):
    """A problem's process ended without a record. One line with the reason."""


class Cancelled(Exception):
    """The problem was cancelled, so it has no record."""


class Engine(Protocol):
    """Runs problems. Several threads may call `run` at the same time."""

    def run(self, order: Order, report: Report) -> Record:
        """Return the record of a problem. Raises EngineLost and Cancelled."""
        ...

    def cancel(self) -> None:
        """End all problems in progress; later calls of `run` raise Cancelled."""
        ...


def limit_s(order: Order) -> float:
    """Return the seconds after which a problem's process is ended.

    The run itself stops at `max_time_s`, but may then judge its best attempts for the record.
    """
    return 2 * order.settings.max_time_s + CERTIFY_S


class LocalEngine:
    """Runs each problem in a process of this machine."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        """Folder for what each process prints."""
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._cancelled = False

    def run(self, order: Order, report: Report) -> Record:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{order.problem.replace('/', '_').replace(' ', '_')}.log"
        log.unlink(missing_ok=True)  # it may be a link to a file of the user
        with log.open("xb") as errors:
            process = self._start(errors)
            timer = threading.Timer(limit_s(order), _end, [process])
            timer.start()
            try:
                record = _record_of(process, order, report)
            finally:
                over_time = not timer.is_alive()
                timer.cancel()
                with self._lock:
                    self._processes.discard(process)
                _end(process)
        if record is not None:
            return record
        if self._cancelled:
            raise Cancelled
        if over_time:
            raise EngineLost(f"not done in {limit_s(order):.0f} s")
        raise EngineLost(_why(process.returncode, log))

    def _start(self, errors: Any) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._cancelled:
                raise Cancelled
            # A new session, so that Ctrl-C in the terminal reaches only the benchmark.
            process = subprocess.Popen(
                [sys.executable, "-m", "cuagent.bench.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            self._processes.add(process)
        return process

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            processes = list(self._processes)
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            _end(process)


def _record_of(process: subprocess.Popen[bytes], order: Order, report: Report) -> Record | None:
    """Send the order, pass on the progress, and return the record; None if there is none."""
    assert process.stdin is not None
    assert process.stdout is not None
    record: Record | None = None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order.to_json()).encode() + b"\n")
        process.stdin.flush()
    for line in process.stdout:
        with suppress(ValueError):
            message = json.loads(line)
            if "record" in message:
                record = message["record"]
            else:
                report(message)
    return record


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group if it still runs, and close its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(BrokenPipeError, OSError):
        if process.stdin is not None:
            process.stdin.close()
    process.wait()


def _why(code: int, log: Path) -> str:
    """Return why a process ended, with the last line that it printed."""
    if code == INTERRUPTED:
        return "its process was interrupted"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
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
        """Number of problems that the cluster runs at the same time."""
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


def _in_ray(order: dict[str, Any], logs: str) -> dict[str, Any]:
    """Run a problem in a process of this Ray worker's machine; Ray has chosen the GPU."""
    try:
        return {"record": LocalEngine(Path(logs)).run(Order.from_json(order), lambda _: None)}
    except EngineLost as error:
        return {"lost": str(error)}
