"""Count a task's memory traffic and operations in a trusted child process.

The referee never runs the user's module: `count` runs in the referee, `serve` in the child. Each
task is counted once per process, because every profile needs the result and counting takes a second
or two.

Invariant: no code of a candidate runs in that child, so its answer is trusted.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cuagent.device_lock import ALONE, Sharing
from cuagent.measure.roofline.model import Work
from cuagent.measure.roofline.work import count_work, matrix_unit
from cuagent.task import Task, TaskError, Values, check_runs, open_reference
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.verify.oracle.process import ONE_QUEUE
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.channel import send_message
from cuagent.worker.giving_way import receive_from_child

TIME_LIMIT_S = 120.0
"""Time limit in seconds for counting one task."""
REQUEST = "count.json"
"""File in the child's folder that describes the task to count."""
_counted: dict[str, tuple[Work, str]] = {}
"""Results of `count` in this process, by the task's digest."""
_counting = threading.Lock()
"""Mutex of `count`, so that no task is counted twice."""


def is_counted(task: Task) -> bool:
    """Return True if `count` needs no device, because the work is known."""
    return task.digest in _counted


def count(task: Task, fork_server: ForkServer, sharing: Sharing = ALONE) -> tuple[Work, str]:
    """Return the work of one call of the reference, and the precision of the fastest matrix rate
    that its settings admit ("fp32", "tf32", "fp16" or "bf16").

    The device is held by `sharing`; the counting process is stopped while a timing waits. Raises
    TaskError if the module cannot be counted, ForkServerError if the process fails.
    """
    with _counting:
        if task.digest not in _counted:
            _counted[task.digest] = _count(task, fork_server, sharing)
        return _counted[task.digest]


def count_ahead(task: Task, fork_server: ForkServer) -> None:
    """Begin to count the work of a task in the background; `count` then waits for this result.

    A failure is left to `count`, which counts again.
    """

    def work() -> None:
        with suppress(TaskError, ForkServerError, OSError):  # the fork server may end meanwhile
            count(task, fork_server)

    # A daemon, because a task may be refused meanwhile.
    threading.Thread(target=work, name="cuagent-counting", daemon=True).start()


def _count(task: Task, fork_server: ForkServer, sharing: Sharing) -> tuple[Work, str]:
    folder = Path(tempfile.mkdtemp(prefix="count-", dir=fork_server.folder))
    (folder / REQUEST).write_text(json.dumps(task_to_json(task)))
    child = fork_server.fork("cuagent.measure.roofline.count", folder, ONE_QUEUE)
    received, late = None, False
    try:
        received = receive_from_child(fork_server, child, sharing, TIME_LIMIT_S)
    except TimeoutError:
        late = True
    finally:
        fork_server.end(child)
        shutil.rmtree(folder, ignore_errors=True)
    if received is None:
        why = (
            f"no answer within {TIME_LIMIT_S:.0f} s; give smaller inputs (--inputs), or try again "
            "when the machine is quiet"
            if late
            else "its process ended; run it again, with smaller inputs if memory is short"
        )
        raise TaskError(f"{task.path}: its work could not be counted: {why}")
    answer, _ = received
    if "error" in answer:
        raise TaskError(answer["error"])
    return Work.from_json(answer["work"]), answer["unit"]


def serve(channel: socket.socket, folder: Path) -> None:
    """Count the work of the task in the request, in the child, and send the result."""
    try:
        task = task_from_json(json.loads((folder / REQUEST).read_text()))
        reference = replace(open_reference(task), values=Values.DRAWN_THERE)
        check_runs(reference)
        work = count_work(reference)
        answer = {"work": work.to_json(), "unit": matrix_unit(reference, work)}
    except TaskError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - the process boundary: the user's module failed
        text = " ".join(str(error).split())[:300]
        answer = {"error": f"cannot count the work: {type(error).__name__}: {text}"}
    send_message(channel, answer)
