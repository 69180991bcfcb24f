"""Run one problem in a process: `python -m cuagent.bench.child`.

It reads an order from its first line of stdin, and writes progress and the record to stdout, one
JSON object a line. Output of the user's module goes to stderr, which the benchmark keeps in a
file. The process ends when stdin closes, so that a killed benchmark leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from cuagent.bench.order import Order

VISIBLE = "CUDA_VISIBLE_DEVICES"
INTERRUPTED = 130
"""Exit code of a problem without a record."""


def main() -> int:
    """Do the problem that stdin names."""
    answers = os.dup(1)
    os.dup2(2, 1)
    order = Order.from_json(json.loads(_first_line()))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        try:
            os.write(answers, json.dumps(message, allow_nan=False).encode() + b"\n")
        except BrokenPipeError:
            os._exit(INTERRUPTED)

    lock_path = prepare(order)
    from cuagent.bench.held_lock import HeldLock
    from cuagent.bench.solve import Interrupted, solve
    from cuagent.record import plain

    try:
        record = solve(order, HeldLock(lock_path), send)
    except (KeyboardInterrupt, Interrupted):
        return INTERRUPTED
    send({"record": plain(record)})
    return 0


def prepare(order: Order) -> Path | None:
    """Restrict this process to the order's GPU and processors; return the file of the GPU's lock.

    A problem on the CPU has no lock: its processors are its own.
    """
    from cuagent.bench.held_lock import lock_file

    if order.cores:
        os.sched_setaffinity(0, order.cores)
        os.environ["OMP_NUM_THREADS"] = str(len(order.cores))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(len(order.cores))
    if order.settings.device != "cuda":
        return None
    if order.gpu is not None:
        os.environ[VISIBLE] = order.gpu
    # One compiler process for each core and problem would make a thousand processes.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    return lock_file(os.environ.get(VISIBLE, "0"))


def _first_line() -> bytes:
    """Read stdin to the end of its first line, unbuffered, since a thread waits for its end."""
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(0, 1 << 16)):
        line += piece
    return line


def _end_with_parent() -> None:
    """Wait until stdin closes, then end this process; its children end with it."""
    while os.read(0, 1):
        pass
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
