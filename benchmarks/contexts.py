"""Measure how many CUDA contexts a machine creates per second, with others idle or in parallel.

    python benchmarks/contexts.py --out contexts.json

A verdict needs a process with a context, and a timing needs two more. The driver creates the
contexts of all processes one after another, more slowly the more exist; this limits the rate of a
pool of judges. This program creates each context in a forked process by the same driver calls that
torch makes; the context ends with the process.
Not covered: work in a context; other GPUs of the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slices import write

PARTS = ("initializing", "context")
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--idle", type=int, nargs="+", default=[0, 40], help="idle contexts held open"
    )
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--count", type=int, default=16, help="contexts of each arm")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"no CUDA driver ({error}); run it on a machine with a GPU")
    found = []
    for queues in ("8", "1"):
        os.environ[QUEUES] = queues
        for idle in options.idle:
            with idle_contexts(idle):
                for at_once in options.at_once:
                    row = {
                        "queues": int(queues),
                        "idle": idle,
                        **create_contexts(at_once, options.count),
                    }
                    print(json.dumps(row), flush=True)
                    found.append(row)
                    if options.out:
                        write(options.out, {"arms": found})


def create_contexts(at_once: int, count: int) -> dict[str, float]:
    """Create `count` CUDA contexts in forked processes, at most `at_once` at the same time.

    Returns the rate in contexts per second (`a second`), including their destruction, and the
    median seconds of each step in PARTS.
    """
    begin, parts = time.perf_counter(), list[list[float]]()
    running = dict[int, int]()
    started = 0
    while started < count or running:
        while started < count and len(running) < at_once:
            pid, reader = fork_context(stay=False)
            running[pid] = reader
            started += 1
        pid, _ = os.waitpid(-1, 0)
        parts.append(read_seconds(running.pop(pid)))
    rate = count / (time.perf_counter() - begin)
    medians = map(statistics.median, zip(*parts, strict=True))
    return {"at once": at_once, "a second": round(rate, 2)} | {
        name: round(s, 3) for name, s in zip(PARTS, medians, strict=True)
    }


@contextmanager
def idle_contexts(count: int) -> Iterator[None]:
    """Keep `count` CUDA contexts open, in stopped processes, inside this context."""
    pids = []
    try:
        for _ in range(count):
            pid, reader = fork_context(stay=True)
            pids.append(pid)
            read_seconds(reader)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def fork_context(stay: bool) -> tuple[int, int]:
    """Fork a process that creates a CUDA context; return its pid and the pipe from which to read
    its times.

    `stay`: the process then stops and keeps the context; otherwise it exits.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    code = 1
    try:
        os.write(theirs, json.dumps(context()).encode())
        os.close(theirs)
        if stay:
            os.kill(os.getpid(), signal.SIGSTOP)
        code = 0
    finally:
        os._exit(code)


def read_seconds(reader: int) -> list[float]:
    """Return the seconds of each step in PARTS that a process of `fork_context` wrote to its
    pipe."""
    with os.fdopen(reader) as source:
        text = source.read()
    if not text:
        sys.exit("a context could not be made: is the GPU full, or not there?")
    seconds: list[float] = json.loads(text)
    return seconds


def context() -> list[float]:
    """Create the primary CUDA context of the first device; return the seconds of each step in
    PARTS."""
    driver, device, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    started = time.perf_counter()
    check(driver.cuInit(0))
    ready = time.perf_counter()
    check(driver.cuDeviceGet(ctypes.byref(device), 0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(handle), device))
    return [ready - started, time.perf_counter() - ready]


def check(error: int) -> None:
    if error:
        raise RuntimeError(f"the CUDA driver says {error}")


if __name__ == "__main__":
    main()
