"""The process of the oracle: requests to it, its answers, and the errors if it fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuagent.task import Task, TaskError
from cuagent.task.plain import task_to_json
from cuagent.verify.oracle.facts import BUDGET, LOCK
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.breaks import receive_giving_way
from cuagent.worker.channel import send_message
from cuagent.worker.fork_server_main import DEFECT

ANSWER_S = 600.0
"""Time limit in seconds for the oracle's answer to one request."""
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Environment variables of trusted processes in which no speed is measured.

A machine with 40 open contexts creates 1.0 a second with eight queues to the GPU, and 7 with one
(docs/measurements/contexts-h200-2.json).
"""
FAULT_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals that a process causes by a fault in its code; other signals are sent by other
processes.
"""


class OracleLost(Exception):
    """Error: the oracle died, does not answer or lacks memory. It is a fault of the machine."""


class OracleProcess:
    """The oracle's process with a queue of requests.

    Methods raise TaskError if the user's module fails or crashes the process, OracleLost if the
    process ends otherwise.
    """

    def __init__(
        self, fork_server: ForkServer, task: Task, budget: int | None, lock: Path | None
    ) -> None:
        """Start the process. `budget` limits the bytes of the device's memory.

        `lock` is the path of the device's lock.
        """
        self._fork_server = fork_server
        self._path = task.path
        self._folder = Path(tempfile.mkdtemp(prefix="oracle-", dir=fork_server.folder))
        (self._folder / "task.json").write_text(json.dumps(task_to_json(task)))
        (self._folder / BUDGET).write_text(json.dumps(budget))
        (self._folder / LOCK).write_text(json.dumps(lock and str(lock.resolve())))
        self.give_way: Callable[[], None] = lambda: None
        """Callback in the oracle's breaks, so that a waiting timing can use the device."""
        self._child = fork_server.fork("cuagent.verify.oracle.server", self._folder, ONE_QUEUE)
        self.lost = False
        self._request_ids = itertools.count()
        self._outstanding: deque[int] = deque()
        """Numbers of the unanswered requests, in the order of sending, which is that of the
        answers.
        """
        self._answers: dict[int, dict[str, Any]] = {}

    @property
    def pid(self) -> int:
        """Process id of the oracle."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """True if the process is running and accepts requests."""
        return not self.lost and self._child.alive

    @property
    def is_idle(self) -> bool:
        """True if every request was answered."""
        return not self._outstanding

    def post(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> int:
        """Send a request and return its number."""
        self._check_alive()
        try:
            send_message(self._child.channel, message, descriptors)
        except OSError as error:
            raise self._lost_error(silent=False) from error
        number = next(self._request_ids)
        self._outstanding.append(number)
        return number

    def wait(self, request: int) -> dict[str, Any]:
        """Wait for the answer to a request and return it. Raises TaskError, OracleLost."""
        while request not in self._answers:
            self._receive()
        answer = self._answers.pop(request)
        if "memory" in answer:
            raise OracleLost(
                f"{answer['memory']}; use a smaller task, or end other processes and verify again"
            )
        if "error" in answer:
            raise TaskError(answer["error"])
        return answer

    def await_all(self) -> None:
        """Wait until every request was answered. Raises OracleLost."""
        while self._outstanding:
            self._receive()

    def drop(self) -> set[int]:
        """Cancel the requests that the oracle has not begun; return their numbers.

        Waits for the request that is in progress.
        """
        if not self._outstanding:
            return set()
        self.wait(self.post({"do": "drop"}))
        dropped = {number for number, answer in self._answers.items() if "dropped" in answer}
        for number in dropped:
            del self._answers[number]
        return dropped

    def ignore_all(self) -> None:
        """Discard the answers to all requests that were sent so far."""
        self._answers.clear()

    def close(self) -> None:
        """End the process. Idempotent."""
        self.lost = True
        with contextlib.suppress(ForkServerError):  # then the process is gone with its parent
            self._fork_server.end(self._child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self) -> None:
        """Receive one answer. The device is given away in the oracle's breaks meanwhile."""
        self._check_alive()
        channel = self._child.channel
        try:
            received = receive_giving_way(channel, lambda: self.give_way(), ANSWER_S)
        except TimeoutError as error:
            raise self._lost_error(silent=True) from error
        except OSError as error:
            raise self._lost_error(silent=False) from error
        if received is None:
            raise self._lost_error(silent=False)
        self._answers[self._outstanding.popleft()] = received[0]

    def _check_alive(self) -> None:
        if self.lost:
            raise OracleLost("the reference's process died; verify again")

    def _lost_error(self, *, silent: bool) -> TaskError | OracleLost:
        """Return the error for a missing answer: TaskError if the user's module is at fault, else
        OracleLost.
        """
        self.lost = True
        if silent:
            return OracleLost(
                f"the reference's process did not answer within {ANSWER_S:g} s; give smaller "
                "inputs (--inputs), or try again when the machine is quiet"
            )
        if self._child.pidfd is not None:
            # The channel closes shortly before the process ends; wait for its exit status.
            select.select([self._child.pidfd], [], [], 1.0)
        try:
            status = self._fork_server.end(self._child)
        except ForkServerError as error:
            return OracleLost(f"the reference's process died with the fork server ({error})")
        fault = None if status is None else _own_fault(status)
        if fault is None:
            return OracleLost("the reference's process was killed from outside; verify again")
        return TaskError(
            f"{self._path}: the module ended its own process ({fault}); remove the call that exits "
            "or crashes"
        )


def _own_fault(status: int) -> str | None:
    """Return how the user's module ended the process, by its exit status; None if it did not."""
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return None if code == DEFECT else f"exit code {code}"
    number = os.WTERMSIG(status)
    return signal.Signals(number).name if number in FAULT_SIGNALS else None
